"""Fully sharded training of a torch model: each rank holds a part of parameters, gradients and optimizer state."""
