"""The first step of a torch experiment on a few samples, before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from raygpu.experiment import Experiment, Splits
from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings
from raygpu.training.torch.experiment import forward, own_methods
from raygpu.training.torch.reduction import objective
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.solo import TorchSolo


def first_result(experiment: Experiment, splits: Splits, hp: Mapping[str, Any]) -> tuple[EpochResult, frozenset[str]]:
    """Train and evaluate on a few samples, on the CPU, before anything is started.

    Returns the result, and the names of the hyper-parameters that were read. A very large model is evaluated
    alone. splits: the few samples. Raises any exception of the experiment.
    """
    settings = Settings(epochs=1, threads=torch.get_num_threads(), precision="float32", folder=Path())
    training = TorchSolo(experiment, splits, Trial("t0000", 0, hp), settings, torch.device("cpu"))
    if own_methods(experiment):
        _ = training.optimizer  # made also for a large model, which takes no step: what it reads counts as read
    before = training.model.state_dict().keys()
    result = base.first_result(training, sum(parameter.numel() for parameter in training.model.parameters()))
    _require_no_broadcast(training)
    if added := training.model.state_dict().keys() - before:
        raise ValueError(
            f"{min(added)} is in the model's state after a step, and not before it: a new model could not take a"
            " checkpoint's state over; make it in model(hp)"
        )
    return result, frozenset(training.hp.names_read)


@torch.no_grad()
def _require_no_broadcast(training: TorchSolo) -> None:
    """Raise ValueError if the loss of outputs (batch, 1) and targets (batch,) is that of (batch, batch) pairs."""
    few = slice(0, min(EVALUATION_BATCH, training.data.num_validation))
    inputs, targets = next(training.data.validation_batches([few]))
    outputs = forward(training.model, inputs)
    if not isinstance(outputs, torch.Tensor) or not isinstance(targets, torch.Tensor):
        return
    if targets.is_floating_point() and outputs.shape != targets.shape and outputs.numel() == targets.numel() > 1:
        losses = []
        for each in (targets, targets.reshape(outputs.shape)):
            seed_all(0)  # a loss may draw noise
            losses.append(objective(training.experiment.loss(outputs.clone(), each.clone())))
        if not torch.allclose(*losses, equal_nan=True):
            raise ValueError(
                f"loss() gets outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}, and compares each"
                " with each: reshape one of them, as targets.reshape(outputs.shape)"
            )
