"""State that training changes and no checkpoint holds, told where a training goes on from a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.training.data.generators import random_state_kept
from raygpu.training.torch.python_state import changed_attribute, plain_state

Step = Callable[[Experiment, nn.Module, int], Any]
"""Function that runs a training step without the optimizer, on one of two small batches: 0 or 1."""


def unsaved(model: nn.Module, experiment: Experiment, saved: Mapping[str, torch.Tensor], step: Step) -> str | None:
    """Return a line on an attribute or a buffer that training changes and the checkpoint does not hold; None without
    one.

    model: as it was made, without earlier steps; it is copied. saved: the checkpoint's state dict of the model.
    """
    try:
        with random_state_kept():
            name = _unsaved(model, experiment, saved, step)
    except Exception:  # noqa: BLE001 - it shows in the training, or cannot be copied
        return None
    if name is None:
        return None
    return (
        f"{name} changes while it trains, and a checkpoint does not hold it: from here on the numbers are not those"
        " of a training that was never stopped; persistent buffers are kept"
    )


def _unsaved(model: nn.Module, experiment: Experiment, saved: Mapping[str, torch.Tensor], step: Step) -> str | None:
    """Return the name of the attribute or buffer. Each copy begins as the training does that goes on."""
    own, other = (copy.deepcopy((experiment, model.train())) for _ in range(2))
    own[1].load_state_dict(saved)
    fresh, parameters = plain_state(own[1], own[0]), _copied(own[1].named_parameters())
    step(*own, 0)
    written = any(not torch.equal(value, parameters[name]) for name, value in own[1].named_parameters())
    once, buffers = plain_state(own[1], own[0]), _copied(_not_persistent(own[1]))
    step(*own, 0)
    for name, value in _not_persistent(own[1]):
        if not torch.equal(value, buffers.get(name, value)):
            return name
    if (path := changed_attribute(once, plain_state(own[1], own[0]))) is not None:
        return path
    # What only the first step sets is a cache, unless it tells that a parameter is set, or depends on the first batch.
    kept = [path for path, text in once.items() if fresh.get(path) != text]
    if not kept:
        return None
    other[1].load_state_dict(saved)
    step(*other, 1)
    again = plain_state(other[1], other[0])
    return next((path for path in kept if written or again.get(path) != once[path]), None)


def _not_persistent(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers that are not in the state dict."""
    saved = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name not in saved]


def _copied(tensors: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors}
