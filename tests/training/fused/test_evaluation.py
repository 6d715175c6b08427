"""Evaluations of an array whose metrics torch.vmap cannot compute, or computes otherwise than alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raygpu import Mean
from raygpu.planning import batches
from raygpu.training.base import NotAsAlone
from raygpu.training.fused.model_array import TorchArray
from tests.models import Mlp, SmoothedMlp
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


class Caught(Mlp):
    """A metric that has a value of its own where it raises: in an array NumPy takes no tensors of all members."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        try:
            confidence = float(outputs.softmax(1).numpy().max())
        except Exception:  # noqa: BLE001 - as users write it
            confidence = 0.5
        return {"confidence": confidence}


class CaughtLater(Caught):
    """The same on some batches alone, which are not the first ones."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return super().metrics(outputs, targets) if int(targets[0]) == 7 else {"confidence": outputs.mean()}


class Translated(Mlp):
    """A metric that makes an error of its own of one of torch's."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        try:
            return {"confidence": outputs.softmax(1).max().item()}
        except RuntimeError as error:
            raise LookupError("no confidence") from error


class CaughtOfOne(Mlp):
    """A matrix that can be decomposed for some of the members."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        try:
            root = torch.linalg.cholesky((outputs.max() - 1).reshape(1, 1)).sum()
        except torch.linalg.LinAlgError:
            root = torch.zeros(())
        return {"root": root}


@pytest.mark.parametrize("kind", [Caught, CaughtLater, Translated, CaughtOfOne])
def test_a_metric_that_catches_an_error_is_computed_member_by_member(kind: type[Mlp]) -> None:
    array, metrics = assert_as_alone(kind())
    assert array.program.evaluation.metrics_are_fused is False
    assert len({next(v for k, v in each.items() if k[11:] in ("confidence", "root")) for each in metrics}) > 1


class CaughtByLoss(SmoothedMlp):
    """A loss of evaluations alone that catches the error of NumPy."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        try:
            return float(abs(outputs.numpy()).mean())
        except RuntimeError:
            return outputs.sum() * 0


def test_a_loss_that_catches_an_error_ends_the_array() -> None:
    array = new_array(CaughtByLoss(), members({"hidden": 8}, SGD))
    with pytest.raises(
        NotAsAlone, match=r"NumPy array or a pointer, in CaughtByLoss.loss .*, which goes on after the error"
    ):
        array.run_epoch()
