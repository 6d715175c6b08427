"""Torch trials fused into one array of models: their choice, their steps, and checks that they equal trials alone."""
