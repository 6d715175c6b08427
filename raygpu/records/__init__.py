"""A run on disk and in memory: its folder, the records of its trials, its progress, and its orderly end.

Imports `planning`, `search` and `config`; never torch, TensorFlow, Ray or MLflow.
"""
