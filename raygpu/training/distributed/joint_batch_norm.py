"""BatchNorm of a torch model whose batches several ranks share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook

from raygpu.training.torch.models import has_batch_norm

NO_GRADIENT = (
    "loss() returned a part without a gradient for the samples of some devices, which the SyncBatchNorm of the others"
    " waits for in a backward pass that {through} hides; keep the part in the graph, as by the sum of no losses,"
    " losses[:0].sum()"
)
NOT_JOINED = "BatchNorm: torch synchronises it on GPUs only; here each rank normalises its share by itself"


def join_batch_norm(model: nn.Module, device: torch.device) -> list[str]:
    """Have each BatchNorm of a model normalise over all ranks' samples, where torch can do that; return lines for a
    person.

    Its statistics are rank 0's, as that one evaluates and saves: waiting for them would spoil the speeds.
    """
    if not has_batch_norm(model):
        return []
    if device.type != "cuda":
        return [NOT_JOINED]
    _synchronize(model)
    apart = [
        f"{name}, {type(module).__name__}" for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.training and not isinstance(module, nn.SyncBatchNorm)
    ]  # fmt: skip
    cause = f"BatchNorm: torch synchronises none with a class or a forward() of its own ({'; '.join(apart)})"
    return [f"{cause}; there each rank normalises its share by itself"] if apart else []


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a SyncBatchNorm in a forward pass."""

    edge: GradientEdge
    """Its output in the graph of the backward pass."""
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> torch.Tensor:
        """Return a gradient of the output for samples that do not count."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


class JointNorms:
    """The calls of SyncBatchNorm in a step, which exchange numbers with the other ranks in the backward pass too.

    A rank whose samples do not count in a loss may have nothing to differentiate. The others wait for it, and the
    gradient of their losses depends on its samples through the statistics: it passes gradients of zero to those calls
    that the others' backward pass reaches.
    """

    def __init__(self, *, compiled: bool) -> None:
        """compiled: whether the model is, whose calls cannot be noted."""
        self._compiled = compiled
        self._calls: list[_Call] = []

    def begin_step(self) -> None:
        """Forget the calls of the step before."""
        self._calls.clear()

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the calls of a forward pass, which runs meanwhile: the same on all ranks."""
        if self._compiled:
            yield
            return
        handle = register_module_forward_hook(self._note)
        try:
            yield
        finally:
            handle.remove()

    def _note(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.SyncBatchNorm) and module.training and output.requires_grad:
            self._calls.append(_Call(get_gradient_edge(output), output.shape, output.dtype, output.device))

    def reached(self, value: torch.Tensor) -> list[int]:
        """Return the places of the calls that the backward pass of a value reaches. Raises ValueError where that is
        not known."""
        if self._compiled:
            raise ValueError(NO_GRADIENT.format(through="torch.compile"))
        nodes: set[Any] = set()
        left = [value.grad_fn]
        while left:
            node = left.pop()
            if node is None or node in nodes:
                continue
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise ValueError(NO_GRADIENT.format(through="a checkpoint with use_reentrant=True"))
            nodes.add(node)
            left += [following for following, _ in node.next_functions]
        return [place for place, call in enumerate(self._calls) if call.edge.node in nodes]

    def pass_zeros(self, places: Sequence[int], *, retain: bool) -> None:
        """Run the backward pass from these calls with gradients of zero. retain: see `reduction.backward`."""
        calls = [self._calls[place] for place in places]
        if calls:
            edges, zeros = [call.edge for call in calls], [call.zeros() for call in calls]
            torch.autograd.backward(edges, zeros, retain_graph=retain)


def has_joint_norm(model: nn.Module) -> bool:
    """Return whether a layer exchanges statistics with the other ranks, in the forward and in the backward pass."""
    return any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())


def _synchronize(model: nn.Module) -> None:
    """Make each BatchNorm one over all ranks' samples; subclasses of torch's layers stay as they are.

    Each stays the same object, with the attributes of a SyncBatchNorm: `convert_sync_batchnorm` makes new ones, without
    the hooks of the old, which the user's code may hold elsewhere too.
    """
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d) and "forward" not in vars(module):
            module.__class__ = nn.SyncBatchNorm
            module.process_group = None  # all ranks
