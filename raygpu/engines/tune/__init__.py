"""A sweep on Ray Tune: one trainable, one searcher and one callback for every mode.

A trial alone is an array of one.
"""
