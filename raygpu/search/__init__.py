"""The trials of a sweep and their early stopping: the search space, samplers and stopping rules.

Gives `Trial` and its results (`trials`), `space`, `samplers`, `halving`, `median`, `stopping` and a trial's
`signature`. Imports `config` and `experiment`; never torch, TensorFlow, Ray or MLflow.
"""
