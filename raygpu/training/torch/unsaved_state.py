"""State that training changes and no checkpoint holds, told where a training goes on from a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from raygpu.config.generators import random_state_kept
from raygpu.experiment import Experiment
from raygpu.training.deep_copy import deep_copy
from raygpu.training.torch.parameter_traits import changed_freezing, frozen
from raygpu.training.torch.python_state import changed_attribute, plain_state
from raygpu.training.torch.reduction import objective
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.training_mode import set_training

Step = Callable[[Experiment, nn.Module, int], Any]
"""Function that runs a training step without the optimizer, on one of two small batches, 0 or 1; returns its loss."""

Evaluation = Callable[[Experiment, nn.Module], None]
"""Function that evaluates a small batch."""
KEPT = "state that the model or the loss keeps between steps"


def unsaved(
    model: nn.Module, experiment: Experiment, saved: Mapping[str, torch.Tensor], step: Step, evaluate: Evaluation
) -> str | None:
    """Return a line on an attribute or a buffer that training changes and the checkpoint does not hold; None without
    one.

    model: as it was made, without earlier steps; it is copied. saved: the checkpoint's state dict of the model.
    """
    try:
        with random_state_kept():
            name = _unsaved(model, experiment, saved, step, evaluate)
    except Exception:  # noqa: BLE001 - it shows in the training, or cannot be copied
        return None
    if name is None:
        return None
    return (
        f"{name} changes while it trains, and a checkpoint does not hold it: from here on the numbers are not those"
        " of a training that was never stopped; persistent buffers are kept"
    )


def _unsaved(
    model: nn.Module, experiment: Experiment, saved: Mapping[str, torch.Tensor], step: Step, evaluate: Evaluation
) -> str | None:
    """Return the name of an attribute, buffer or parameter that a training has after a step, and one that went on from
    a checkpoint right before that step has not."""
    set_training(model)
    trained, going_on = (deep_copy((experiment, model)) for _ in range(2))
    trained[1].load_state_dict(saved)
    _seeded(step, *trained, 0)
    _evaluated(evaluate, *trained)  # as between two epochs
    set_training(trained[1])
    going_on[1].load_state_dict(trained[1].state_dict())
    if (name := changed_freezing(frozen(going_on[1]), trained[1])) is not None:
        return name
    # A lambda over the model reaches the model itself in place of a copy: of that too a checkpoint holds these buffers.
    held = [(buffer, buffer.clone()) for name, buffer in model.named_buffers() if name in saved]
    states, tensors, losses = [], [], []
    for each, model_copy in (trained, going_on):
        for buffer, values in held:
            buffer.data.copy_(values)
        losses.append(torch.as_tensor(objective(_seeded(step, each, model_copy, 1))).detach())
        _evaluated(evaluate, each, model_copy)
        states.append(plain_state(model_copy, each))
        tensors.append({**dict(model_copy.named_parameters()), **dict(model_copy.named_buffers())})
    differ = (name for name, value in tensors[0].items() if not _alike(value, tensors[1].get(name)))
    changed_name = changed_attribute(*states) or next(differ, None)
    return KEPT if changed_name is None and not _alike(*losses) else changed_name


def _evaluated(evaluate: Evaluation, experiment: Experiment, model: nn.Module) -> None:
    seed_all(0)
    model.eval()
    with contextlib.suppress(Exception):  # metrics that need more samples
        evaluate(experiment, model)


def _seeded(step: Step, experiment: Experiment, model: nn.Module, place: int) -> Any:
    seed_all(place)
    return step(experiment, model, place)


def _alike(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return torch.equal(one, other) or (one.is_floating_point() and torch.allclose(one, other, equal_nan=True))
