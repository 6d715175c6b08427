"""Seconds that Tune trials take beside their training, until they are measured."""

TRIAL_S = 0.25
"""Seconds between two trials of a reused worker: a result, a checkpoint and the next trial's start."""
ARRAY_S = 1.0
"""Seconds to make an array and measure its widths."""
WORKER_S = 4.0
"""Seconds to start a worker."""
