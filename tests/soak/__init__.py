"""Sweeps under random faults, each audited against the same sweep without faults: `python -m tests.soak`."""
