"""Benchmarks: each writes a dated record of machine, versions, commands, raw numbers and ratios to `records/`."""
