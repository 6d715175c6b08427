"""One torch model trained alone, and what every torch training uses: data, losses, optimizers, seeds."""
