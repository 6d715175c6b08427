"""The training mode of a model, without the parts that `model(hp)` returned in evaluation mode for good: a frozen
teacher, a frozen backbone, a frozen BatchNorm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

STAYS = "_raygpu_stays_in_evaluation"
"""Attribute of submodules in which nothing trains: whether `model(hp)` left them in evaluation mode."""

STAYING = "_raygpu_staying"
"""Attribute of a model: STAYS of its submodules by their names, as deep copies of traced networks lose it."""

SWITCHED = "_raygpu_switched"
"""Attribute of submodules that `model(hp)` left in evaluation mode, that have parameters which may train, and that are
put into training mode therefore."""


def note_modes(model: nn.Module) -> None:
    """Note which parts of a new model stay in evaluation mode: those in this mode in which nothing trains, where the
    part around them stays too, or is in training mode itself.

    Libraries return whole networks in evaluation mode, and these train as a whole, with the frozen parts in them. What
    was noted before holds for a module that an earlier model has as well, which evaluations have switched since.
    """
    if any(map(_in_training, model.modules())):
        _note(model, stays=False, in_training=_in_training(model), seen=set())
        noted = ((name, getattr(module, STAYS, None)) for name, module in model.named_modules())
        _mark(model, STAYING, value={name: stays for name, stays in noted if stays is not None})


def _note(module: nn.Module, *, stays: bool, in_training: bool, seen: set[int]) -> None:
    """Note the modes of the modules below one. stays: whether it stays in evaluation mode itself. in_training: whether
    it is in training mode, where it is new."""
    for child in module.children():
        if id(child) in seen:
            continue
        seen.add(id(child))
        child_stays = False
        if not _trains(child):
            has_values = next(child.parameters(), None) is not None
            child_stays = getattr(child, STAYS, stays or in_training) and not _in_training(child)
            if has_values or not (child_stays and stays):  # else the part around it decides, which may be unfrozen
                _mark(child, STAYS, value=child_stays)
        elif in_training and not _in_training(child):
            _mark(child, SWITCHED, value=True)
        _note(child, stays=child_stays, in_training=_in_training(child), seen=seen)


def _mark(module: nn.Module, name: str, *, value: bool | dict[str, bool]) -> None:
    with contextlib.suppress(Exception):  # of modules that take no attributes, as some that are scripted
        setattr(module, name, value)


def set_training(model: nn.Module) -> None:
    """Set training mode, but for the parts that stay in evaluation mode as long as nothing in them trains."""
    model.train()
    inside = set[nn.Module]()
    staying = getattr(model, STAYING, {})
    for name, module in model.named_modules():  # each before those in it
        stays = getattr(module, STAYS, staying.get(name))
        if stays and not _trains(module):
            module.eval()
            inside.update(module.modules())
        elif stays is False and module in inside:  # as dropout that a teacher keeps
            module.train()


def switched(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts that `model(hp)` left in evaluation mode, and that train in training mode, by their names."""
    yield from ((name, module) for name, module in model.named_modules() if getattr(module, SWITCHED, False))


def _trains(module: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters())


def _in_training(module: nn.Module) -> bool:
    return getattr(module, "training", False)  # which torch.jit.freeze takes away
