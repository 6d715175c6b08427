"""Arrays with another step have another key: by constants that the code reads, and by the user's other modules."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from random import shuffle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.array_key import array_key
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.experiment import TorchExperiment
from raygpu.training.torch.value_texts import LARGE

X, Y = np.ones((8, 4), np.float32), np.zeros(8, np.int64)
SMOOTHING = 0.1


class Smoothed(TorchExperiment):
    def __init__(self, smoothing: float = 0.1) -> None:
        self.smoothing = smoothing
        self.known, self.names = np.zeros(LARGE), {"one", "two", "three"}
        self.folder = Path("data")

    def data(self) -> Splits:
        return Splits(X, Y, X, Y)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = nn.Linear(4, 2)
        model.hp = hp
        return model

    def loss(self, outputs: Any, targets: Any) -> Any:
        smoothing = self.smoothing * SMOOTHING
        return nn.functional.cross_entropy(outputs, targets, label_smoothing=smoothing)


def key(experiment: TorchExperiment, lr: float = 0.1, seed: int = 0) -> str | None:
    trials = [Trial(f"t{i}", seed + i, {"lr": lr * (i + 1), "batch_size": 4}) for i in range(2)]
    settings = Settings(1, 1, "float32", Path())
    return array_key(TorchArray(experiment, experiment.data(), trials, settings, device=torch.device("cpu")))


class Projected(Smoothed):
    """Has a buffer that is drawn by the trial's seed."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        model.register_buffer("projection", torch.randn(4))
        return model


class KeepsItsModel(Smoothed):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.net = super().model(hp)
        return self.net


class Shuffled(Smoothed):
    """A method of Python's generator, whose state each epoch of each trial sets, is a global of `data`."""

    def data(self) -> Splits:
        shuffle([])
        return super().data()


@pytest.mark.parametrize("kind", [Projected, KeepsItsModel, Shuffled])
def test_seeds_of_trials_are_not_in_the_key(kind: type[Smoothed]) -> None:
    assert key(kind()) == key(kind(), seed=5) is not None


def test_a_constant_of_the_experiment_is_in_the_key() -> None:
    assert key(Smoothed(0.1)) != key(Smoothed(0.12))


def test_a_global_constant_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(Smoothed())
    monkeypatch.setattr(sys.modules[__name__], "SMOOTHING", 0.2)
    assert key(Smoothed()) != before


class Weighted(Smoothed):
    """Has a loss with class weights, and a frozen teacher."""

    def __init__(self, weight: float = 1.0, teacher: float = 1.0) -> None:
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([weight, 1.0]))
        self.teacher = nn.Linear(4, 2).requires_grad_(False)
        nn.init.constant_(self.teacher.weight, teacher)
        nn.init.zeros_(self.teacher.bias)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return self.criterion(outputs, targets)


def test_tensors_of_a_module_that_the_experiment_keeps_are_in_the_key() -> None:
    keys = [key(Weighted()), key(Weighted(weight=3.0)), key(Weighted(teacher=2.0))]
    assert len(set(keys)) == 3
    assert key(Weighted()) == keys[0]


def test_an_experiment_made_again_has_the_same_key_whatever_a_module_keeps_of_hp() -> None:
    one, other = Smoothed(), Smoothed()  # with large arrays in two places
    assert key(one) == key(other, lr=0.2)
