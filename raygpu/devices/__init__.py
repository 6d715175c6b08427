"""GPUs and the host: discovery, readings, selection for a sweep, and sharing between trainings."""
