"""A run on disk and in memory: its folder, its trials, its progress, its orderly end, and the job that it runs in.

Imports `planning`, `search` and `config`; never torch, TensorFlow, Ray or MLflow.
"""
