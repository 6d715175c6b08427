"""Evaluations of an array whose metrics torch.vmap cannot compute, or computes otherwise than alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raygpu import Mean
from raygpu.planning import batches
from raygpu.training.fused.model_array import TorchArray
from tests.models import Mlp
from tests.training.fused.alike import SGD, members, new_array, run, solo

BATCH = 20
"""Samples of a batch of an evaluation here: several make the validation data."""


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "EVALUATION_BATCH", BATCH)


def assert_as_alone(experiment: Mlp, epochs: int = 3, width: int = 2) -> tuple[TorchArray, list[dict[str, float]]]:
    """Compare the metrics of an array with those of the trials alone, in every epoch; return those of the last one."""
    trials = members({"hidden": 8}, SGD)
    array = new_array(experiment, trials, epochs=epochs, width=width)
    results = run(array, epochs)
    for trial in trials:
        for result, expected in zip(results, run(solo(experiment, trial, torch.float64, epochs), epochs), strict=True):
            assert dict(result[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-6)
    return array, [dict(results[-1][trial.trial_id].metrics) for trial in trials]


class Sometimes(Mlp):
    """Metrics that only some members have, on some batches: those that predict a digit at all."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        hits = outputs.argmax(1)
        found: dict[str, Any] = {"mean": Mean(0, 0)}
        for digit in range(10):
            if bool((hits == digit).any()):
                right = (targets[hits == digit] == digit).double()
                found[f"precision_{digit}"] = Mean(right.sum(), len(right)) if digit % 2 else right.mean()
                found["mean"] = right.mean().item()
        return found


def test_metrics_that_only_some_members_have() -> None:
    _, metrics = assert_as_alone(Sometimes())
    assert len({len(each) for each in metrics}) > 1, "some members lack metrics that others have"
