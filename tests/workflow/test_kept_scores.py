"""What is told, or refused, before a run whose loaded model, workers or metrics would not be those that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.config import SweepConfig, TrainConfig
from raygpu.errors import BadInput
from raygpu.search.trials import Trial
from raygpu.workflow.checkpoint_models import warm_start_lines
from raygpu.workflow.user_code import Problem, find, problem, training_problem
from raygpu.workflow.validation import prepare, prepare_train

PATH = "tests/workflow/test_kept_scores.py"
LOST = "scale changes while it trains, and a checkpoint does not hold it: a loaded model has validation/"


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.scale += 1
        return self.last(inputs) * self.scale


class Forgets(TorchExperiment):
    test: float | None = None

    def data(self) -> Splits:
        inputs = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
        return Splits.of(inputs, np.arange(60) % 2, validation=0.5, test=self.test)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Scaled()


class ForgetsTested(Forgets):
    test = 0.2


class Sets(Forgets):
    factor = 1.0

    def data(self) -> Splits:
        self.factor = 2.0
        return super().data()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.factor * super().loss(outputs, targets)


class Largest(TorchExperiment):
    """A metric that is no mean, of more samples than an evaluation takes at once."""

    def data(self) -> Splits:
        inputs = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
        return Splits.of(inputs, np.arange(2000) % 2, validation=0.9)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 2)

    def metrics(self, outputs: Any, targets: Any) -> Any:
        return {"largest": outputs.max(), "accuracy": (outputs.argmax(1) == targets).float().mean()}


class Ignoring(TorchExperiment):
    """Leaves a third of its targets out, by the default loss and metrics."""

    def data(self) -> Splits:
        inputs = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
        return Splits.of(inputs, np.where(np.arange(2000) % 3, np.arange(2000) % 2, -100), validation=0.9)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 2)


class LargestOfMany(Largest):
    """Fails on fewer samples than an evaluation takes, and not on the few of a first step."""

    def metrics(self, outputs: Any, targets: Any) -> Any:
        if 8 < len(outputs) < 500:
            raise ValueError("too few")
        return super().metrics(outputs, targets)


class Draws(Forgets):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        found = nn.Linear(4, 2)
        found.order = torch.randperm(4)  # type: ignore[assignment]
        return found


def swept(name: str, folder: Path) -> Problem:
    values = {"experiment": f"{PATH}:{name}", "epochs": 1, "trials": 2, "space": {"lr": 0.1}, "metric": "loss"}
    prepared = prepare(SweepConfig.model_validate(values | common(folder)), "test")
    return problem(prepared, *find(prepared.config, Path.cwd()))


def common(folder: Path) -> dict[str, Any]:
    return {"runs_dir": str(folder), "tracking": {"uri": f"sqlite:///{folder}/mlflow.db"}}


def trained(name: str, folder: Path, **more: Any) -> Problem:
    values = {"experiment": f"{PATH}:{name}", "epochs": 1, "hyperparameters": {"lr": 0.1}, "metric": "loss"}
    prepared = prepare_train(TrainConfig.model_validate(values | common(folder) | more), "test", resuming=False)
    return training_problem(prepared, *find(prepared.config, Path.cwd()))


def test_a_line_tells_what_a_checkpoint_does_not_hold(tmp_path: Path) -> None:
    for found in (swept("Forgets", tmp_path), trained("Forgets", tmp_path)):
        (note,) = found.notes
        assert note.startswith(LOST)


def test_scores_of_another_model_are_refused(tmp_path: Path) -> None:
    for make in (swept, trained):
        with pytest.raises(BadInput, match=f"{LOST}.*; the score on test data would be of another model"):
            make("ForgetsTested", tmp_path)
    with pytest.raises(BadInput, match=f"{LOST}.*; a registered model would be another one"):
        trained("Forgets", tmp_path, registered_name="mine")


def test_what_data_sets_for_others_is_refused(tmp_path: Path) -> None:
    line = r"data\(\) sets or changes self\.factor, which loss\(\) reads: workers get the arrays that it returns"
    with pytest.raises(BadInput, match=line):
        swept("Sets", tmp_path)


def test_a_metric_that_is_no_mean_is_told_by_a_sweep_too(tmp_path: Path) -> None:
    (note,) = swept("Largest", tmp_path).notes
    assert note.startswith("validation/largest, of 1,800 samples, is the mean of batches of 1,024, as it is no mean")


def test_left_out_targets_of_several_batches_are_told(tmp_path: Path) -> None:
    names = [note.partition(",")[0] for note in swept("Ignoring", tmp_path).notes]
    assert names == ["validation/loss", "validation/accuracy"]


def test_a_metric_that_is_not_looked_at_is_told_by_a_sweep_too(tmp_path: Path) -> None:
    (note,) = swept("LargestOfMany", tmp_path).notes
    assert "whether its metrics are means over samples is not known, as a look at them failed: " in note


def test_a_warm_start_tells_what_its_own_seed_draws(tmp_path: Path) -> None:
    trial = Trial("t0000", 7, {"lr": 0.1})
    assert warm_start_lines(trained("Forgets", tmp_path), trial) == []
    (line,) = warm_start_lines(trained("Draws", tmp_path), trial)
    assert line.startswith("--warm-start: Linear.order is drawn by the seed, and no checkpoint holds it")
    assert "and 7 is used" in line
