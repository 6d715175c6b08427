"""Trainings, an epoch at a time, of every kind of experiment.

`torch` and `keras` train one model alone, `fused` an array of torch models, `callable` functions and scripts, and
`distributed` one model over several devices. Imports `records`, `planning`, `search` and `config`; never Ray or MLflow.
"""
