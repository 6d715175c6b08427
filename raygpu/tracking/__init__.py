"""The only door to MLflow.

Gives a run's session, the tree of runs, the thread that writes them, measured profiles, models and their registry, and
earlier runs by their id. Imports `records`, `planning`, `search` and `config`; never Ray, and frameworks only in
`exported_*`.
"""
