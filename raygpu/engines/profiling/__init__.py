"""Measurements of trainings that share a device, for `raygpu.pack`, `raygpu.balance` and the probe inside a sweep."""
