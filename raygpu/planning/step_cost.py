"""Predicted speed of trainings on a GPU, alone and in an array, from the operators and arithmetic of a step. Pure.

The host launches the kernels of one operator after the other, which takes as long for one model as for an array of
many. Once the arithmetic of a step takes longer than these launches, one training fills the GPU: it gains nothing from
more members, whose convolutions are slower as a group besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from raygpu.config.sections import Precision

LAUNCH_S = 5.5e-5
"""Seconds that the host takes for an operator of PyTorch, with Python's and autograd's part: of an MLP (17 operators,
0.93 ms) and a CNN (32 operators, 1.86 ms) on an H100."""
FLOP_PER_S: Mapping[Precision, float] = {"float32": 2e13, "tf32": 5e13, "bf16": 5e13, "fp16": 5e13}
"""Arithmetic of a training that fills a GPU: a ResNet-18 does 2.4e13 in float32 on an H200, and 2.6 times as much in
tf32 as in float32 on an H100. Half precision, not measured, is taken for tf32."""
ARRAY_SPEED = 2 / 3
"""Speed of an array that fills a GPU, in parts of one training's: of four ResNet-18 on an H200, whose batch norms
were torch.vmap's."""


@dataclass(frozen=True, slots=True)
class StepCost:
    """Operators and arithmetic of one step of one training."""

    batch_size: int
    num_operators: int
    """PyTorch operators of a step, forward, backward and of the optimizer; views left out."""
    flop: float
    """Floating-point operations of matrix products and convolutions, forward and backward."""
    precision: Precision = "float32"

    @property
    def samples_per_s(self) -> float:
        """Samples/s of one training."""
        return self.batch_size / self._alone_s

    def gain(self, members: int) -> float:
        """Return the speed of an array over that of one training.

        It is a ratio, and so holds on a GPU that is slower or faster than the one of the constants.
        """
        return members * self._alone_s / max(self._alone_s, members * self._arithmetic_s / ARRAY_SPEED)

    @property
    def _alone_s(self) -> float:
        return max(self.num_operators * LAUNCH_S, self._arithmetic_s)

    @property
    def _arithmetic_s(self) -> float:
        return self.flop / FLOP_PER_S[self.precision]
