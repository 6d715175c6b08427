"""Numbers of the loss scaling of trainings in fp16, the same for torch, arrays and Keras.

The loss is multiplied by a scale, so that float16 does not round small gradients to 0. A step whose gradient overflows
is left out, and halves the scale; GROWTH_STEPS steps without one double it (Micikevicius et al. 2018,
arXiv:1710.03740). The first four are the defaults of torch.amp.GradScaler.
"""

INITIAL_SCALE = 2.0**16
BACKOFF, GROWTH = 0.5, 2.0
GROWTH_STEPS = 2000
LOWEST_SCALE = 2.0**-14
"""Smallest normal float16: a loss scale that has fallen below it means gradients that are never finite, and the
training counts as diverged."""
