"""The first step of a torch experiment on a few samples, before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from raygpu.experiment import Experiment, Splits, num_samples
from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.experiment import forward, overrides, own_methods, training_loss
from raygpu.training.torch.reduction import objective
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.solo import TorchSolo

PAIRED = 4
"""Number of samples of which each output is compared with each target, before anything is started."""


def first_result(
    experiment: Experiment, splits: Splits, hp: Mapping[str, Any]
) -> tuple[EpochResult, frozenset[str], list[str]]:
    """Train and evaluate on a few samples, on the CPU, before anything is started.

    Returns the result, the names of the hyper-parameters that were read, and lines on what the training ignores. A very
    large model is evaluated alone. splits: the few samples. Raises any exception of the experiment.
    """
    settings = Settings(epochs=1, threads=torch.get_num_threads(), precision="float32", folder=Path())
    training = TorchSolo(experiment, splits, Trial("t0000", 0, hp), settings, torch.device("cpu"))
    if own_methods(experiment):
        _ = training.optimizer  # made also for a large model, which takes no step: what it reads counts as read
    before = training.model.state_dict().keys()
    result = base.first_result(training, sum(parameter.numel() for parameter in training.model.parameters()))
    untrained = _untrained(training)
    _require_sample_by_sample(training)
    if added := training.model.state_dict().keys() - before:
        raise ValueError(
            f"{min(added)} is in the model's state after a step, and not before it: a new model could not take a"
            " checkpoint's state over; make it in model(hp)"
        )
    return result, frozenset(training.hp.names_read), [untrained] if untrained is not None else []


def _untrained(training: TorchSolo) -> str | None:
    """Return a line on a module of the experiment whose parameters have got a gradient, and are not the model's; None
    without one.

    Raises ValueError for such a parameter that the experiment keeps itself.
    """
    own = {id(parameter) for parameter in training.model.parameters()}
    told = None
    for name, value in vars(training.experiment).items():
        if not isinstance(value, torch.nn.Module | torch.nn.Parameter):
            continue
        parameters = [value] if isinstance(value, torch.nn.Parameter) else value.parameters()
        if not any(each.grad is not None and id(each) not in own for each in parameters):
            continue
        fault = f"self.{name} gets a gradient and is no part of the model, so that no optimizer changes it"
        if isinstance(value, torch.nn.Parameter):
            raise ValueError(f"{fault}: make it a part of what model(hp) returns")
        told = told or f"{fault}: make it a part of what model(hp) returns, or set its requires_grad to False"
    return told


def _require_sample_by_sample(training: TorchSolo) -> None:
    """Raise ValueError if the loss or a metric of outputs (batch, 1) and targets (batch,) is that of (batch, batch)
    pairs, or if a metric adds up the batches of earlier calls."""
    few = slice(0, min(EVALUATION_BATCH, training.data.num_validation))
    inputs, targets = next(training.data.validation_batches([few]))
    experiment, model = own_copy(training.experiment), training.model.eval()
    with torch.no_grad():
        outputs = forward(model, inputs)
        _require_no_memory(experiment, outputs, targets)
        if (shapes := _unlike_shapes(outputs, targets)) is None:
            return
        found = _each_with_each(lambda o, t: {"loss()": objective(experiment.loss(o, t))}, outputs, targets)
        found += _each_with_each(lambda o, t: _metrics(experiment, o, t), outputs, targets)
    if overrides(experiment, "training_step"):  # which may take gradients itself
        step = partial(training_loss, experiment, model, hp=training.hp)
        found += _each_with_each(lambda x, t: {"training_step()": objective(step(x, t))}, inputs, targets)
    if found:
        raise ValueError(
            f"{found[0]} gets outputs {shapes[0]} and targets {shapes[1]}, and compares each with each: reshape one of"
            " them, as targets.reshape(outputs.shape)"
        )


def _require_no_memory(experiment: Experiment, outputs: Any, targets: Any) -> None:
    """Raise ValueError if a metric of the same samples is another one once others were evaluated."""
    half = num_samples(targets) // 2
    found = []
    for rows in (slice(0, half), slice(half, None), slice(0, half)):
        try:
            found.append(_values(partial(_metrics, experiment), outputs, targets, rows, rows))
        except Exception:  # noqa: BLE001 - metrics may want more samples, or other ones
            return
    for name, value in found[0].items():
        if not math.isclose(value, again := found[2].get(name, value), rel_tol=1e-4) and math.isfinite(value + again):
            raise ValueError(
                f"{name} of the same samples is {value:.4g}, and {again:.4g} once others were evaluated: it adds up"
                " what it has seen; compute it from outputs and targets alone, as torchmetrics.functional does"
            )


def _metrics(experiment: Experiment, outputs: Any, targets: Any) -> dict[str, Any]:
    return {f"metrics(), {name}": value for name, value in experiment.metrics(outputs, targets).items()}


def _unlike_shapes(outputs: Any, targets: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the shapes of an output and a target of as many numbers in other shapes; None if there are none."""
    for output in tree_leaves(outputs):
        for target in tree_leaves(targets):
            if output.shape != target.shape and output.numel() == target.numel() > 1:
                return tuple(output.shape), tuple(target.shape)
    return None


def _each_with_each(measure: Callable[[Any, Any], Mapping[str, Any]], values: Any, targets: Any) -> list[str]:
    """Return the names of those measures of a few samples that are measures of all their pairs.

    measure: of values and targets, both tensors (batch, ...) or trees of them. A measure of pairs is the mean, or the
    sum, of what the measure says of each sample's value beside each sample's target, or the root of such a mean.
    """
    count = min(PAIRED, num_samples(targets))
    rows = [slice(each, each + 1) for each in range(count)]
    try:
        whole = _values(measure, values, targets, slice(0, count), slice(0, count))
        pairs = [[_values(measure, values, targets, row, column) for column in rows] for row in rows]
    except Exception:  # noqa: BLE001 - a measure may want more samples, or be no number
        return []
    found = []
    for name, value in whole.items():
        table = np.array([[pair[name] for pair in row] for row in pairs])
        own, every = table.diagonal(), table.ravel()
        powers = (1, 2)  # the latter for a root of a mean
        if any(_is_mean(value**p, every**p) and not _is_mean(value**p, own**p) for p in powers):
            found.append(name)
    return found


def _values(
    measure: Callable[[Any, Any], Mapping[str, Any]], values: Any, targets: Any, rows: slice, target_rows: slice
) -> dict[str, float]:
    """Return the measures of some samples' values and some samples' targets."""
    seed_all(0)  # a loss may draw noise
    chosen = tree_map(lambda leaf: leaf[rows].clone(), values)
    found = measure(chosen, tree_map(lambda leaf: leaf[target_rows].clone(), targets))
    return {name: float(torch.as_tensor(objective(value)).detach()) for name, value in found.items()}


def _is_mean(value: float, of: np.ndarray) -> bool:
    """Return whether a value is the mean or the sum of numbers, as far as single precision tells."""
    return any(math.isclose(value, each, rel_tol=1e-4, abs_tol=1e-7) for each in (of.mean(), of.sum()))
