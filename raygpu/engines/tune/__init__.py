"""A sweep on Ray Tune: trainables, searchers and callbacks, of single trials (`trial_*`) and of arrays (`array_*`).

Arrays serve fused mode and, for Keras, split mode.
"""
