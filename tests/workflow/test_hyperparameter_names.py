"""Hyper-parameters of raygpu's own that change nothing, or that the experiment reads too, are told before a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import Splits, TorchExperiment
from raygpu.search.hyperparameters import ALL_NAMES
from raygpu.workflow.hyperparameter_names import training_lines
from tests.workflow.tried_experiments import problem_of

PATH = "tests/workflow/test_hyperparameter_names.py"
EXPERIMENTS = "tests/workflow/test_first_step.py"
UNREAD = "space: a first step does not read {}: what nothing reads changes nothing"
PIXELS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


class TorchOwnOptimizer(TorchExperiment):
    def data(self) -> Splits:
        return Splits.of(PIXELS, (PIXELS.sum(axis=1) > 0).astype(np.int64))

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(8, 2)

    def optimizer(self, model: Any, hp: Any) -> Any:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=hp["lr"])


@pytest.mark.parametrize(
    ("name", "space", "names"),
    [
        ("Torch", {"momentum": 0.9, "nesterov": True}, None),
        ("Torch", {"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ("Torch", {"optimizer": {"choice": ["adam", "sgd"]}, "momentum": 0.9, "betas": [0.9, 0.99]}, None),
        ("Torch", {"betas": [0.9, 0.99], "eps": 1e-6}, "betas, eps"),
        ("Torch", {"gamma": 0.5, "schedule": "cosine"}, "gamma"),
        ("Torch", {"gamma": 0.5, "schedule": {"choice": ["cosine", "step"]}}, None),
        ("TorchOwnOptimizer", {"lr": 0.1, "weight_decay": 0.1, "schedule": "cosine"}, "schedule, weight_decay"),
        ("TorchOwnOptimizer", {"lr": 0.1, "batch_size": 64, "clip_norm": 1.0}, None),
        ("Keras", {"optimizer": "adam", "momentum": 0.9}, "momentum"),
    ],
)
def test_a_setting_without_effect_is_told(name: str, space: dict[str, Any], names: str | None, tmp_path: Path) -> None:
    path = PATH if name == "TorchOwnOptimizer" else EXPERIMENTS
    assert problem_of(path, name, space, tmp_path).notes == ([] if names is None else [UNREAD.format(names)])


BOTH = "the experiment reads {0}, which is {1} too: unless both are meant, give the experiment's another name"


class TorchAttacked(TorchOwnOptimizer):
    """Adversarial training with a radius named eps, a weight named gamma and a decay named ema_decay; raygpu's own
    optimizer."""

    optimizer = TorchExperiment.optimizer

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        """Return the loss of moved inputs."""
        from torch.nn.functional import cross_entropy

        moved = inputs + hp.get("eps", 0.1) * inputs.sign()
        return cross_entropy(model(moved), targets) * hp.get("gamma", 1.0)


class TorchAttackedByOwn(TorchAttacked):
    """The same with an optimizer of its own."""

    def optimizer(self, model: Any, hp: Any) -> Any:
        """Return an optimizer whose learning rate and decay are the experiment's."""
        import torch

        return torch.optim.AdamW(model.parameters(), lr=hp["lr"], weight_decay=hp["weight_decay"])


class TorchTaking(TorchAttacked):
    """The same with code that takes all hyper-parameters."""

    def model(self, hp: Any) -> Any:
        """Return a model that is made with a look at every name."""
        assert {**hp}
        return super().model(hp)


@pytest.mark.parametrize(
    ("name", "space", "told"),
    [
        ("TorchAttacked", {"eps": {"uniform": [0.1, 0.3]}, "optimizer": "adam"}, {"eps": "Adam's eps"}),
        ("TorchAttacked", {"eps": 0.1, "optimizer": {"choice": ["adamw", "sgd"]}}, {"eps": "Adam's eps"}),
        ("TorchAttacked", {"eps": 0.1, "gamma": 0.5, "lr": 0.1, "batch_size": 8}, {}),
        ("TorchAttacked", {"gamma": 0.5, "schedule": "step"}, {"gamma": "the factor of the step schedule"}),
        ("TorchAttacked", {"optimizer": "adam", "schedule": "step", "momentum": 0.9}, {}),
        ("TorchAttackedByOwn", {"eps": 0.1, "lr": 0.1, "weight_decay": 0.1}, {}),
        ("TorchTaking", {"eps": 0.1, "optimizer": "adam"}, {}),
    ],
)
def test_a_name_that_both_read_is_told(name: str, space: dict[str, Any], told: dict[str, str], tmp_path: Path) -> None:
    notes = [note for note in problem_of(PATH, name, space, tmp_path).notes if "too: unless" in note]
    assert notes == [f"space: {BOTH.format(*each)}" for each in told.items()]


@pytest.mark.parametrize(
    ("hp", "changes", "read", "told"),
    [
        ({"momentum": 0.99}, (), {"momentum"}, {"momentum": "SGD's momentum"}),
        ({"momentum": 0.99, "optimizer": "adam"}, (), {"momentum"}, {}),
        ({}, (), {"momentum", "lr"}, {}),
        (
            {},
            ({"epoch": 3, "schedule": "step", "gamma": 0.5},),
            {"gamma"},
            {"gamma": "the factor of the step schedule"},
        ),
        ({"lr": 0.1, "weight_decay": 0.1}, (), {"weight_decay"}, {"weight_decay": "the optimizer's weight decay"}),
        ({"batch_size": 8, "optimizer": "adam"}, (), {"batch_size", "optimizer"}, {}),
        ({"momentum": 0.99}, (), {"momentum", ALL_NAMES}, {}),
    ],
)
def test_a_name_that_both_read_is_told_before_a_training(
    hp: Mapping[str, Any], changes: Sequence[Mapping[str, Any]], read: set[str], told: dict[str, str]
) -> None:
    lines = training_lines(TorchAttacked(), "torch", hp, changes, frozenset(read))
    assert lines == [BOTH.format(*each) for each in told.items()]


def test_the_average_is_raygpus_beside_an_optimizer_of_the_experiment() -> None:
    lines = training_lines(TorchOwnOptimizer(), "torch", {"ema_decay": 0.9}, (), frozenset({"ema_decay"}))
    assert lines == [BOTH.format("ema_decay", "the decay of the average of the parameters")]
