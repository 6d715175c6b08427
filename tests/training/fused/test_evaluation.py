"""Evaluations of an array whose metrics torch.vmap cannot compute, or computes otherwise than alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from raygpu import Mean
from raygpu.planning import batches
from raygpu.training.base import NotAsAlone
from raygpu.training.fused.evaluation import KeptBuffers
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


class AdaptiveMlp(nn.Module):
    """Test-time adaptation: an evaluation moves the level that it and the training divide by."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, hidden), nn.Linear(hidden, 10)
        self.register_buffer("level", torch.ones(hidden))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of flattened images."""
        h = torch.relu(self.first(x.flatten(1)))
        if not self.training:
            self.level.mul_(0.5).add_(0.5 * h.detach().mean(0))
        return self.last(h / (self.level + 0.1))


class Adapting(Mlp):
    """A metric by NumPy beside it, on the batches that begin with one of these digits."""

    digits: tuple[int, ...] = (*range(10),)

    def model(self, hp: Any) -> nn.Module:
        """Return a model whose evaluations change a buffer."""
        return AdaptiveMlp(hp["hidden"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Return the mean output; by NumPy on some batches."""
        return {"mean": float(outputs.numpy().mean()) if int(targets[0]) in self.digits else outputs.mean()}


class AdaptingLater(Adapting):
    """By NumPy on batches that are not the first ones."""

    digits = (7,)


@pytest.mark.parametrize("kind", [Adapting, AdaptingLater])
@pytest.mark.parametrize("common", [{}, {"ema_decay": 0.9}], ids=["plain", "average"])
def test_an_evaluation_that_is_repeated_moves_a_buffer_once(kind: type[Mlp], common: dict[str, Any]) -> None:
    trials = members({"hidden": 8}, SGD, **common)
    array = new_array(kind(), trials, epochs=2, width=3)
    results = run(array, 2)
    assert array.program.evaluation.metrics_are_fused is False
    for trial in trials:
        for result, expected in zip(results, run(solo(kind(), trial, torch.float64, 2), 2), strict=True):
            assert dict(result[trial.trial_id].metrics) == pytest.approx(dict(expected.metrics), rel=1e-9)


def test_only_buffers_that_an_evaluation_changes_are_copied_later() -> None:
    buffers = {"moving": torch.ones(2, 3), "steady": torch.ones(2, 3)}
    first = KeptBuffers(buffers, buffers)
    torch.vmap(lambda one: one["moving"].mul_(2), chunk_size=1)(buffers)
    assert first.changed() == {"moving"}
    first.put_back()
    assert buffers["moving"].eq(1).all()
    later = KeptBuffers(buffers, first.changed())
    buffers["moving"].mul_(3)
    later.put_back()
    assert buffers["moving"].eq(1).all()
    buffers["steady"].mul_(3)
    with pytest.raises(NotAsAlone, match="changes the buffer steady"):
        later.put_back()
