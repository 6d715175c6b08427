"""Count the operators and the floating-point operations of a step, in place of its time.

with StepCounter() as counter:
    ...  # a step on the CPU
counter.num_operators, counter.flop
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry


class StepCounter(TorchDispatchMode):
    """Counts operators that compute something, as views launch no kernel, and FLOPs by torch's formulas.

    `torch.utils.flop_counter.FlopCounterMode` imports torch's compiler, which takes seconds, and takes the weights'
    gradient of a grouped convolution for that of a whole one (torch 2.13).
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_operators = 0
        self.flop = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, to keep it out of this class

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = operator(*args, **(kwargs or {}))
        self.num_operators += not operator.is_view
        packet = operator.overloadpacket
        if packet is torch.ops.aten.convolution_backward:
            self.flop += _convolution_backward(*args)
        elif packet in flop_registry:
            self.flop += flop_registry[packet](*args, **(kwargs or {}), out_val=results)
        return results


def _convolution_backward(gradient: torch.Tensor, inputs: torch.Tensor, weight: torch.Tensor, *others: Any) -> int:
    """Return the FLOPs of a convolution's gradients: those of the inputs and of the weight cost as much as the forward
    pass. others: bias sizes, stride, padding, dilation, transposed, output padding, groups, wanted gradients."""
    transposed, wanted = others[4], others[7]
    shapes = [[*tensor.shape] for tensor in (inputs, weight, gradient)]
    return sum(wanted[:2]) * conv_flop_count(*shapes, transposed=transposed)
