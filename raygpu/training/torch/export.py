"""A trained torch model as a program of its own: what is kept of it needs no code of the experiment's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from raygpu.experiment import Arrays, Experiment
from raygpu.training.base import Exported
from raygpu.training.torch.data import Tensors, tensors
from raygpu.training.torch.solo import forward, trained_model


def export(experiment: Experiment, hp: Mapping[str, Any], checkpoint: Path, inputs: Arrays, folder: Path) -> Exported:
    """inputs: a few samples, two at least, so that their number stays open. folder: for the program.

    Raises what torch.export raises, and TypeError of a model whose output is no tensor.
    """
    model = trained_model(experiment, hp, checkpoint)
    given = _whole(tensors(inputs))
    with torch.no_grad():
        outputs = forward(model, given)
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"the model's output is {type(outputs).__name__}; one tensor is wanted")
    program = None
    if isinstance(given, dict):
        program = folder / "model.pt2"
        shapes = {name: {0: torch.export.Dim.AUTO} for name in given}
        torch.export.save(torch.export.export(model, (), given, dynamic_shapes=shapes), program)
    return Exported(model, outputs.numpy(), program)


def _whole(given: Tensors) -> Tensors:
    """In one piece of memory each: a program may be bound to how its example lay there."""
    if isinstance(given, dict):
        return {name: tensor.contiguous() for name, tensor in given.items()}
    return given.contiguous()
