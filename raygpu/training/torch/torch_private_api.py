"""Private operators of torch for steps, loaders and packages; `test_torch_private_api.py` tells when they change.

torch.optim reaches the same fused operators by `fused=True`, but making any of its optimizers imports torch._dynamo and
sympy. In a fresh worker that takes as long as importing torch did, and every packed trial is a worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import torch

from raygpu.training.hyperparameters import OptimizerSettings

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

Tensors = list[torch.Tensor]
LEFT_BY_FUSED_SGD = (torch.bfloat16, torch.float16)
"""Dtypes of which the fused operator of SGD leaves most elements as they are on a CPU (torch 2.11 to 2.13)."""


def fused_step(
    settings: OptimizerSettings,
    parameters: Tensors,
    gradients: Tensors,
    buffers: Sequence[Tensors],
    *,
    lr: float,
    numbers: Sequence[int],
) -> None:
    """Update parameters and buffers in place as torch.optim's SGD, Adam or AdamW does.

    buffers: `settings.num_buffers` lists. numbers: of this step, from 1, for each parameter. All lists have one entry
    for each parameter, and all tensors have one dtype and one device. The operators on the CPU read memory in its own
    order, whatever the strides are: the tensors of a parameter need equal strides, without gaps.
    """
    s = settings
    match s.optimizer:
        case "sgd" if is_left_by_fused_sgd(parameters[0]):
            _sgd(s, parameters, gradients, buffers, lr)
        case "sgd":
            torch._fused_sgd_(
                parameters,
                gradients,
                *(buffers or [[]]),
                lr=lr,
                momentum=s.momentum,
                nesterov=s.nesterov,
                weight_decay=s.weight_decay,
                dampening=0.0,
                maximize=False,
                is_first_step=False,
            )
        case "adam" | "adamw" as kind:
            operator = torch._fused_adamw_ if kind == "adamw" else torch._fused_adam_
            device = parameters[0].device
            steps = {number: torch.full((), number, dtype=torch.float32, device=device) for number in set(numbers)}
            operator(
                parameters,
                gradients,
                *buffers,
                [],
                [steps[number] for number in numbers],
                lr=lr,
                beta1=s.betas[0],
                beta2=s.betas[1],
                eps=s.eps,
                weight_decay=s.weight_decay,
                amsgrad=False,
                maximize=False,
            )
        case _:
            assert_never(s.optimizer)
    torch.autograd.graph.increment_version([*parameters, *chain(*buffers)])  # the operators leave it to the caller


def is_left_by_fused_sgd(parameter: torch.Tensor) -> bool:
    """Return whether the fused operator of SGD leaves most elements of such a parameter as they are."""
    return parameter.device.type == "cpu" and parameter.dtype in LEFT_BY_FUSED_SGD


def _sgd(s: OptimizerSettings, parameters: Tensors, gradients: Tensors, buffers: Sequence[Tensors], lr: float) -> None:
    """Update parameters and momenta in place by torch.optim.SGD's own operations, and to the bit as it does."""
    for place, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
        if s.weight_decay:
            gradient = gradient.add(p, alpha=s.weight_decay)
        if buffers:
            velocity = buffers[0][place].mul_(s.momentum).add_(gradient)
            gradient = gradient.add(velocity, alpha=s.momentum) if s.nesterov else velocity
        p.add_(gradient, alpha=-lr)


def times_mapped(tensor: torch.Tensor) -> int:
    """Return the number of torch.vmap calls around this one that map over the tensor."""
    functorch, count = torch._C._functorch, 0
    while functorch.is_functorch_wrapped_tensor(tensor):
        count += functorch.is_batchedtensor(tensor)
        tensor = functorch.get_unwrapped(tensor)
    return count


def stack_of(tensor: torch.Tensor) -> tuple[torch.Tensor, int, int] | None:
    """Return the stack of all members' tensors behind one inside torch.vmap, its dimension of the members, and the
    level of this vmap; None for a tensor that the innermost transformation around the code does not map."""
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(tensor) or not functorch.is_batchedtensor(tensor):
        return None
    level = functorch.maybe_get_level(tensor)
    if level != functorch.maybe_current_level():  # inside a torch.func.grad that does not track it
        return None
    return functorch.get_unwrapped(tensor), functorch.maybe_get_bdim(tensor), level


def member_of(stack: torch.Tensor, level: int) -> torch.Tensor:
    """Return what one member sees of a stack (samples, members, ...) inside torch.vmap: see `stack_of`."""
    mapped: torch.Tensor = torch._C._functorch._add_batch_dim(stack, 1, level)
    return mapped


def copy_all(targets: Tensors, sources: Tensors) -> None:
    """Copy each tensor into another one of its shape, on a GPU in one call."""
    torch._foreach_copy_(targets, sources)


def end_processes(loader: DataLoader[Any]) -> None:
    """End the processes of a loader with `persistent_workers`: torch does so only once nothing refers to the loader and
    its iterator any more."""
    if loader._iterator is not None:
        with suppress(RuntimeError):  # by torch's handler of SIGCHLD, of one that has failed: the others are ended
            loader._iterator._shutdown_workers()


def load_package(path: Path) -> Callable[[Tensors], Tensors]:
    """Load a package that AOTInductor compiled for the CPU; return its program, from a list of tensors to another one.

    `torch._inductor.aoti_load_package` does the same after importing torch's compiler, which takes over a second.
    Raises RuntimeError if the file is no such package.
    """
    run: Callable[[Tensors], Tensors] = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1).run
    return run
