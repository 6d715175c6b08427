"""Predicted seconds of a training step on a GPU, from the step's operators and arithmetic. Pure.

The host launches the kernels of one operator after the other, which takes a GPU as long for one model as for an array
of many. Once the arithmetic of a step takes longer than these launches, one training fills the GPU: it gains nothing
from more members, whose convolutions are slower as a group besides.
"""

from __future__ import annotations

from dataclasses import dataclass

LAUNCH_S = 5.5e-5
"""Seconds that the host takes for an operator of PyTorch, with Python's and autograd's part: of an MLP (17 operators,
0.93 ms) and a CNN (32 operators, 1.86 ms) on an H100."""
FLOP_PER_S = 2e13
"""Arithmetic of a training that fills a GPU, in float32: a ResNet-18 does 2.4e13 on an H200."""
ARRAY_SPEED = 2 / 3
"""Speed of an array that fills a GPU, in parts of one training's: of four ResNet-18 on an H200."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Operators and arithmetic of one step of one training."""

    num_operators: int
    """PyTorch operators of a step, forward, backward and of the optimizer; views left out."""
    flop: float
    """Floating-point operations of matrix products, convolutions and attention, forward and backward."""

    @property
    def alone_s(self) -> float:
        """Seconds of a step of one training."""
        return max(self.num_operators * LAUNCH_S, self.flop / FLOP_PER_S)

    def array_s(self, members: int, alone_s: float) -> float:
        """Return the seconds of a step of an array, if one training's step takes `alone_s`."""
        arithmetic_s = min(alone_s, self.flop / FLOP_PER_S)
        return max(alone_s, members * arithmetic_s / ARRAY_SPEED)
