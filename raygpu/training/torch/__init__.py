"""One torch model trained alone, and the common parts of torch trainings: data, losses, optimizers, seeds."""
