"""Trials of a sweep whose batches are taken in parts: their loss is looked at, whichever trials they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import nn

from experiments.digits import Mlp
from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.workflow.user_code import find, problem
from raygpu.workflow.validation import prepare
from tests.fakes.nvml import FakeNvml
from tests.models import few


class Small(Mlp):
    """A linear model of few samples."""

    def data(self) -> Any:
        return few(300, 20)

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(64, 10)


class Ranked(Small):
    """A loss of pairs of samples."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs[:, :1] - outputs[:, 0]).abs().mean()


class Normalised(Small):
    def model(self, hp: Any) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))


class OfSmallBatches(Ranked):
    """An experiment that cannot be tried with all values of its space."""

    def model(self, hp: Any) -> nn.Module:
        if hp["batch_size"] == 256:
            raise RuntimeError("too large a batch")
        return super().model(hp)


def problem_in(tmp_path: Path, name: str, space: dict[str, Any], search: dict[str, Any], trials: int | None) -> Any:
    config = SweepConfig.model_validate(
        {"experiment": f"tests/workflow/test_cut_batches.py:{name}", "space": space, "search": search, "epochs": 1}
        | {"metric": "loss", "runs_dir": str(tmp_path), "tracking": {"enabled": False}, "trials": trials, "seed": 2}
    )
    prepared = prepare(config, "cut")
    return problem(prepared, *find(prepared.config, Path.cwd()))


SIZES = [32, 64, 128, 256]
SPACE = {"lr": {"loguniform": [1e-3, 1e-1]}, "batch_size": {"choice": SIZES}, "micro_batch_size": 128}
SEARCHES: list[tuple[dict[str, Any], dict[str, Any], int | None]] = [
    (SPACE, {"algorithm": "random"}, 20),
    (SPACE, {"algorithm": "tpe"}, 20),
    (SPACE | {"lr": 0.1, "batch_size": {"grid_search": SIZES}}, {"algorithm": "grid"}, None),
    (SPACE | {"batch_size": {"randint": [120, 130]}}, {"algorithm": "tpe"}, 4),
    (SPACE | {"micro_batch_size": {"choice": [64], "when": {"batch_size": 128}}}, {"algorithm": "tpe"}, 40),
]


@pytest.mark.parametrize(("space", "search", "trials"), SEARCHES, ids=str)
def test_a_loss_that_later_trials_cut_is_refused(
    space: Any, search: Any, trials: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml([]).install(monkeypatch)
    with pytest.raises(BadInput, match=r"the loss is no mean over samples: .* leave micro_batch_size out$"):
        problem_in(tmp_path, "Ranked", space, search, trials)
    assert not any("micro_batch_size" in note for note in problem_in(tmp_path, "Small", space, search, trials).notes)
    assert any(
        "BatchNorm: each part of a batch" in note
        for note in problem_in(tmp_path, "Normalised", space, search, trials).notes
    )


def test_batches_that_no_trial_cuts_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    for sizes, algorithm in (({"choice": SIZES[:3]}, "random"), ({"randint": [100, 129]}, "tpe")):
        space = SPACE | {"batch_size": sizes}
        assert problem_in(tmp_path, "Ranked", space, {"algorithm": algorithm}, 20).notes == []


def test_the_loss_of_a_trial_that_fails_is_looked_at_with_the_values_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeNvml([]).install(monkeypatch)
    space = SPACE | {"batch_size": {"choice": [128, 256]}, "micro_batch_size": 64}
    with pytest.raises(BadInput, match="the loss is no mean over samples"):
        problem_in(tmp_path, "OfSmallBatches", space, {"algorithm": "random"}, 20)
    with pytest.raises(BadInput, match="too large a batch"):
        problem_in(tmp_path, "OfSmallBatches", space | {"batch_size": 256}, {"algorithm": "random"}, 20)


class Chosen(Small):
    """A mean over samples, or a loss of pairs."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
        outputs = model(inputs)
        return (outputs[:, :1] - outputs[:, 0]).abs().mean() if hp["pairs"] else self.loss(outputs, targets)


def test_each_loss_that_trials_choose_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    space = SPACE | {"batch_size": 256, "pairs": {"grid_search": [False, True]}, "lr": 0.1}
    with pytest.raises(BadInput, match="the loss is no mean over samples"):
        problem_in(tmp_path, "Chosen", space, {"algorithm": "grid"}, None)
    assert problem_in(tmp_path, "Chosen", space | {"pairs": False}, {"algorithm": "random"}, 2).notes == []
