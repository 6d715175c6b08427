"""Measurements: trainings that share a device (`raygpu.pack`, a sweep's probe), unequal devices (`raygpu.balance`)."""
