"""A run on disk and in memory: its folder, the records of its trials, its progress, its orderly end,
and the state of a submitted job.

Imports `planning`, `search` and `config`; never torch, TensorFlow, Ray or MLflow.
"""
