"""An entry trained alone, in arrays and over ranks, and how far the results are apart."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raygpu.experiment import Splits, named
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.parameter_average import UNAVERAGED
from raygpu.training.torch.solo import TorchSolo
from tests.contracts.zoo.entry import Entry
from tests.torch_device import DEVICE

METRICS = 1e-6
"""The relative difference of metrics that rounding explains."""
State = Mapping[str, torch.Tensor]
Outcome = tuple[State, list[Mapping[str, float]]]
"""Parameters and buffers at the end, and the metrics of each epoch."""


def settings(entry: Entry) -> Settings:
    return Settings(entry.epochs, 1, "float32", Path())


def alone(entry: Entry, splits: Splits, trial: Trial, dtype: torch.dtype | None) -> Outcome:
    """A trial trained alone."""
    solo = TorchSolo(entry, splits, trial, settings(entry), DEVICE, dtype)
    metrics = [result.metrics for result in iter(solo.run_epoch, None)]
    state = tensors(solo.state())
    solo.close()
    return state, metrics


def tensors(checkpoint: Mapping[str, Any]) -> State:
    """Parameters and buffers of a checkpoint by name: of the model, and those that are not averaged."""
    kept = {**checkpoint["model"], **{f"{UNAVERAGED} {k}": v for k, v in checkpoint.get(UNAVERAGED, {}).items()}}
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in kept.items()}


def alone_at_start(entry: Entry) -> TorchSolo:
    """The second trial before its first epoch, in the precision of its model and data."""
    return TorchSolo(entry, entry.data(), entry.trials()[1], settings(entry), DEVICE)


def fingerprint(splits: Splits) -> str:
    """Of the data, to the bit."""
    parts = (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
    whole = hashlib.sha256()
    for part in parts:
        for array in named(part).values():
            whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


def difference(found: Outcome, wanted: Outcome, tolerance: float) -> str:
    """Where two outcomes differ by more than rounding explains; empty where they do not."""
    for name, value in wanted[0].items():
        if (off := distance(found[0][name], value)) > tolerance:
            return f"{name} differs by {off:.1e}"
    far = max(METRICS, tolerance)
    assert len(found[1]) == len(wanted[1])
    for epoch, (own, metrics) in enumerate(zip(found[1], wanted[1], strict=True), 1):
        assert set(own) == set(metrics)
        for name, number in metrics.items():
            near = math.isclose(own[name], number, rel_tol=far, abs_tol=far)
            if not near and not (math.isnan(number) and math.isnan(own[name])):
                return f"{name} of epoch {epoch} is {own[name]:.9g}, not {number:.9g}"
    return ""


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """The relative norm of a difference; of whole numbers, infinite unless they are equal."""
    if found.shape != wanted.shape:
        return math.inf
    if not (wanted.is_floating_point() or wanted.is_complex()):
        return 0.0 if torch.equal(found, wanted) else math.inf
    if not bool(wanted.isfinite().all()):
        return 0.0 if torch.equal(found.isfinite(), wanted.isfinite()) else math.inf
    return ((found - wanted).norm() / wanted.norm().clamp(min=1e-6)).item()


def refused(entry: Entry, reason: str) -> None:
    """Fails where the entry has to be fused, or the reason does not name what it is about."""
    assert entry.fused is not None, f"has to be fused, but: {reason}"
    assert re.search(entry.fused, reason), f"{reason!r} does not name {entry.fused!r}"


def fused(
    entry: Entry, splits: Splits, trials: Sequence[Trial], width: int, *, compiled: bool = False
) -> dict[str, Outcome]:
    """The trials trained as an array, by id."""
    array = TorchArray(entry, splits, trials, settings(entry), width=width, device=DEVICE, dtype=entry.dtype)
    if compiled:
        for size in {tile.width for tile in array.tiles}:
            array.program.compile(size, array.batch_size)
    metrics: dict[str, list[Mapping[str, float]]] = {trial.trial_id: [] for trial in trials}
    for results in iter(array.run_epoch, None):
        for trial_id, result in results.items():
            metrics[trial_id].append(result.metrics)
    states = {trial.trial_id: tensors(array.member_state(trial.trial_id)) for trial in trials}
    return {trial_id: (state, metrics[trial_id]) for trial_id, state in states.items()}
