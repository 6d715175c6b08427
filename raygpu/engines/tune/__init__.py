"""Run a sweep on Ray Tune: its trainables, searchers and callbacks, in process mode and in fused mode."""
