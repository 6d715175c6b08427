"""A sweep on Ray Tune: a trainable, a searcher, a scheduler and callbacks, the same in every mode.

A trial alone is an array of one.
"""
