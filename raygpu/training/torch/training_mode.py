"""The training mode of a model, without the parts that `model(hp)` returned in evaluation mode for good: a frozen
teacher, a frozen backbone, a frozen BatchNorm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn

STAYS = "_raygpu_stays_in_evaluation"
"""Attribute of submodules in which nothing trains: whether `model(hp)` left them in evaluation mode."""

SWITCHED = "_raygpu_switched"
"""Attribute of submodules that `model(hp)` left in evaluation mode, that have parameters which may train, and that are
put into training mode therefore."""


def note_modes(model: nn.Module) -> None:
    """Note which parts of a new model stay in evaluation mode: those in this mode in which nothing trains, of a model
    that has others in training mode.

    A part without parameters, as dropout, is one if the part around it is one or is in training mode itself: libraries
    return whole networks in evaluation mode, and these train as a whole. What was noted before holds for a module that
    an earlier model has as well, which evaluations have switched since.
    """
    if any(module.training for module in model.modules()):
        _note(model, stays=False, in_training=model.training, seen=set())


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
            new = not child.training and (stays or in_training or has_values)
            child_stays = getattr(child, STAYS, new) and not child.training
            if has_values or not (child_stays and stays):  # else the part around it decides, which may be unfrozen
                _mark(child, STAYS, value=child_stays)
        elif in_training and not child.training:
            _mark(child, SWITCHED, value=True)
        _note(child, stays=child_stays, in_training=child.training, seen=seen)


def _mark(module: nn.Module, name: str, *, value: bool) -> None:
    with contextlib.suppress(Exception):  # of modules that take no attributes, as some that are scripted
        setattr(module, name, value)


def set_training(model: nn.Module) -> None:
    """Set training mode, but for the parts that stay in evaluation mode as long as nothing in them trains."""
    model.train()
    inside = set[nn.Module]()
    for module in model.modules():  # each before those in it
        stays = getattr(module, STAYS, None)
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
