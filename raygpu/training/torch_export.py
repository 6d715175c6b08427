"""A trained torch model as a program of its own: what is kept of it needs no code of the experiment's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu.experiment import Arrays, Experiment
from raygpu.training.torch_data import Tensors, tensors
from raygpu.training.torch_solo import forward, trained_model


@dataclass(frozen=True, slots=True)
class Exported:
    """A model, and what it makes of a few samples."""

    model: nn.Module
    """In evaluation mode, on the CPU."""
    outputs: np.ndarray
    program: Path | None
    """What torch.export wrote; None of a model with one input, which MLflow exports itself."""


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
