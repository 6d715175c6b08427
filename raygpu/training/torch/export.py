"""Export of a trained torch model as a program that needs none of the experiment's code."""

from __future__ import annotations

from pathlib import Path

import torch

from raygpu.experiment import Arrays, Experiment
from raygpu.search.trials import Trial
from raygpu.training.base import Exported
from raygpu.training.torch.data import of_each, tensors
from raygpu.training.torch.experiment import forward
from raygpu.training.torch.models import trained_model


def export(experiment: Experiment, trial: Trial, checkpoint: Path, inputs: Arrays, folder: Path) -> Exported:
    """Export a checkpoint's model with its outputs; with named inputs, also as a program of torch.export.

    inputs: two samples or more, so that their number stays open. folder: for the program. Raises any exception of
    torch.export, and TypeError for a model whose output is not one tensor.
    """
    model = trained_model(experiment, trial, checkpoint)
    samples = of_each(tensors(inputs), torch.Tensor.contiguous)  # a program may be bound to its example's memory order
    with torch.no_grad():
        outputs = forward(model, samples)
    if not isinstance(outputs, torch.Tensor):
        raise TypeError(f"the model's output is {type(outputs).__name__}; one tensor is wanted")
    program = None
    if isinstance(samples, dict):
        program = folder / "model.pt2"
        shapes = {name: {0: torch.export.Dim.AUTO} for name in samples}
        torch.export.save(torch.export.export(model, (), samples, dynamic_shapes=shapes), program)
    return Exported(model, outputs.numpy(), program)
