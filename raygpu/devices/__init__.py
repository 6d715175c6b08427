"""The only door to NVML (`nvml`, `gpm`) and to MPS: GPUs, their readings, memory limits, RGU.

Imports `planning` and `errors`; never Ray, MLflow, a framework or the other doors.
"""
