"""The blocks of a model whose parameters are gathered together, each for as long as it computes.

A block is a child of an `nn.ModuleList` or an `nn.Sequential`, or one of several submodules of the same class of the
user's. What is in no block is gathered with the root, for the whole step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from inspect import getattr_static

from torch import nn

LARGE = 8
"""A block that holds more than this part (1/8) of the parameters is cut into its own blocks, if it has any."""
SMALL = 256
"""A submodule that holds less than this part (1/256) of the parameters is no block."""


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a model, each before those that it lies in; without the model itself.

    A parameter that a block shares with the rest of the model makes it no block: it would be gathered without the rest.
    """
    total_bytes = num_bytes(model)
    several = Counter(type(module) for module in model.modules())
    chosen = [
        module
        for module in _candidates(model, several, total_bytes, in_row=False)
        if module is not model and SMALL * num_bytes(module) >= total_bytes
    ]
    block_modules: list[nn.Module] = []
    for module in reversed(list(dict.fromkeys(chosen))):  # the inner ones first
        if _holds_its_own(model, module, block_modules):
            block_modules.append(module)
    return block_modules


def largest_bytes(model: nn.Module) -> int:
    """Return the bytes of the most parameters that are gathered at once: those of the root, and of a block."""
    chosen = blocks(model)
    parameter_ids = {id(parameter) for block in chosen for parameter in block.parameters()}
    rest = sum(p.numel() * p.element_size() for p in model.parameters() if id(p) not in parameter_ids)
    return rest + max(map(num_bytes, chosen), default=0)


def num_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's parameters."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


def _candidates(module: nn.Module, several: Counter[type], whole: int, *, in_row: bool) -> Iterator[nn.Module]:
    """Yield blocks from the outer to the inner ones. in_row: whether the module is a child of a list or a sequence."""
    is_container = isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential)
    repeated = several[type(module)] > 1 and not type(module).__module__.startswith("torch.")
    is_block = not is_container and (in_row or (repeated and any(module.children()))) and has_forward(module)
    if is_block:
        yield module
    if is_block and LARGE * num_bytes(module) <= whole:
        return
    row = isinstance(module, nn.ModuleList | nn.Sequential)
    for child in module.children():
        yield from _candidates(child, several, whole, in_row=row)


def has_forward(module: nn.Module) -> bool:
    """Return whether a module can be called; a scripted one, whose class does not tell, counts as one that can."""
    return getattr_static(type(module), "forward") is not nn.Module.forward


def _holds_its_own(model: nn.Module, block: nn.Module, inner: list[nn.Module]) -> bool:
    """Return whether no parameter of a block, but for those of inner blocks, is one of the model outside it too."""
    module_ids = {id(module) for module in block.modules()}
    settled = {id(parameter) for each in inner for parameter in each.parameters()}
    mine = {id(parameter) for parameter in block.parameters()} - settled
    outside = (parameter for module in model.modules() if id(module) not in module_ids
               for parameter in module._parameters.values() if parameter is not None)  # fmt: skip
    return bool(mine) and not any(id(parameter) in mine for parameter in outside)
