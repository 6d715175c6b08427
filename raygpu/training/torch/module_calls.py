"""Calls of submodules in a model's forward pass: their order, and whose parameters each of them uses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


@dataclass(slots=True)
class ModuleCalls:
    """Calls of a model's submodules in one forward pass."""

    order: list[str] = field(default_factory=list)
    """Names of the submodules that were called, in the order of their first calls; the model itself is left out."""
    uses: set[tuple[str, str]] = field(default_factory=set)
    """Submodules whose parameters were used, each with the submodule under way that used them; "" is the model."""

    @property
    def units(self) -> list[str]:
        """Smallest parts that can be placed: submodules that were called and that called no other."""
        return [name for name in self.order if not any(inner.startswith(f"{name}.") for inner in self.order)]


def record_calls(model: nn.Module, forward: Callable[[], Any]) -> ModuleCalls:
    """Run `forward()`, which calls the model, and return the calls of its submodules."""
    calls = ModuleCalls()
    under_way = [""]
    owners = {
        id(tensor): name
        for name, module in model.named_modules()
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False))
    }

    def begin(name: str, module: nn.Module, arguments: Any) -> None:
        """Note the call of a submodule."""
        under_way.append(name)
        if name not in calls.order:
            calls.order.append(name)

    def end(name: str, module: nn.Module, arguments: Any, outputs: Any) -> None:
        """Return to the submodule that has called."""
        under_way.pop()

    def use(tensor: torch.Tensor) -> None:
        """Note who uses a parameter or buffer."""
        if (owner := owners.get(id(tensor))) is not None:
            calls.uses.add((owner, under_way[-1]))

    with torch.no_grad(), around_calls(model, begin, end), _Uses(use):
        forward()
    return calls


@contextmanager
def around_calls(
    model: nn.Module, begin: Callable[..., None], end: Callable[..., None], *, with_model: bool = False
) -> Iterator[None]:
    """Call `begin(name, module, arguments)` and `end(name, module, arguments, outputs)` around calls of submodules.

    with_model: whether also around calls of the model itself, whose name is "".
    """
    handles: list[Any] = []
    for name, module in model.named_modules():
        if name or with_model:
            handles.append(module.register_forward_pre_hook(partial(begin, name)))
            handles.append(module.register_forward_hook(partial(end, name)))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Uses(TorchFunctionMode):
    """Tells of each tensor that a torch function gets."""

    def __init__(self, use: Callable[[torch.Tensor], None]) -> None:
        super().__init__()
        self._use = use

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in tree_leaves((args, kwargs or {})):
            if isinstance(leaf, torch.Tensor):
                self._use(leaf)
        return function(*args, **(kwargs or {}))
