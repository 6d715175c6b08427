"""Torch trials fused into one array of models: which may be, how they step, and checks that they equal trials alone."""
