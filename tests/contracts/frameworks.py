"""Experiments of both frameworks for the contracts of trainings, and one way to train either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.digits import KerasMlp, Mlp, digits
from raygpu import KerasExperiment, Splits, TorchExperiment
from raygpu.experiment import Experiment
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, Training

HP = {"hidden": 32, "lr": 0.1, "momentum": 0.9}


def halves() -> Splits:
    """Digits as two named inputs: the upper and the lower half of each image."""
    whole = digits()

    def cut(pixels: Any) -> dict[str, np.ndarray]:
        return {"top": pixels[:, :32], "bottom": pixels[:, 32:]}

    return Splits(cut(whole.train_inputs), whole.train_targets, cut(whole.validation_inputs), whole.validation_targets)


class TorchHalves(TorchExperiment):
    """Named inputs, BatchNorm and Dropout."""

    def data(self) -> Splits:
        return halves()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import torch
        from torch import nn

        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                hidden = hp["hidden"]
                self.first = nn.ModuleDict({name: nn.Linear(32, hidden) for name in ("top", "bottom")})
                self.norm, self.drop = nn.BatchNorm1d(2 * hidden), nn.Dropout(hp.get("dropout", 0.0))
                self.last = nn.Linear(2 * hidden, 10)

            def forward(self, *, top: torch.Tensor, bottom: torch.Tensor) -> torch.Tensor:
                both = torch.cat([self.first["top"](top), self.first["bottom"](bottom)], dim=1)
                return self.last(self.drop(torch.relu(self.norm(both))))

        return Model()


class KerasHalves(KerasExperiment):
    """`TorchHalves` in Keras."""

    def data(self) -> Splits:
        return halves()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras
        from keras import layers

        inputs = {name: keras.Input((32,), name=name) for name in ("top", "bottom")}
        both = layers.Concatenate()([layers.Dense(hp["hidden"])(inputs[name]) for name in ("top", "bottom")])
        both = layers.Dropout(hp.get("dropout", 0.0))(layers.ReLU()(layers.BatchNormalization(momentum=0.9)(both)))
        return keras.Model(inputs, layers.Dense(10)(both))


def ramp(train: list[float], validation: list[float] | None = None) -> Splits:
    columns = [np.asarray(values, np.float32)[:, None] for values in (train, validation or [1.0, 1.0])]
    return Splits(columns[0], np.zeros(len(columns[0]), np.float32), columns[1], np.zeros(len(columns[1]), np.float32))


class TorchRamp(TorchExperiment):
    """One weight, and its product with the input as the loss: on inputs of 1 each gradient is 1, so validation/loss
    is the weight and its change is the learning rate."""

    def data(self) -> Splits:
        return ramp([1.0] * 8)

    def model(self, hp: Mapping[str, Any]) -> Any:
        from torch import nn

        return nn.Linear(1, 1, bias=False)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return outputs.mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class KerasRamp(KerasExperiment):
    """`TorchRamp` in Keras, as a model that learns its shapes from the data."""

    def data(self) -> Splits:
        return ramp([1.0] * 8)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(1, use_bias=False)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.mean(outputs)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class _Gain:
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        return inputs * hp["gain"]


class _NoModel:
    def model(self, hp: Mapping[str, Any]) -> Any:
        return "a model"


class TorchGain(_Gain, Mlp): ...


class KerasGain(_Gain, KerasMlp): ...


class TorchNoModel(_NoModel, Mlp): ...


class KerasNoModel(_NoModel, KerasMlp): ...


@cache
def splits_of(kind: type[Experiment]) -> Splits:
    return kind().data()


@dataclass(frozen=True)
class Framework:
    solo: Callable[..., Any]
    first_result: Callable[..., Any]
    predict: Callable[..., Any]
    mlp: type[Experiment]
    halves: type[Experiment]
    ramp: type[Experiment]
    gain: type[Experiment]
    no_model: type[Experiment]
    folder: Path

    def start(
        self,
        kind: type[Experiment],
        hp: Mapping[str, Any],
        *,
        epochs: int = 3,
        seed: int = 0,
        splits: Splits | None = None,
        precision: Any = "float32",
    ) -> Any:
        settings = Settings(epochs, 1, precision, self.folder)
        return self.solo(kind(), splits or splits_of(kind), Trial("t0000", seed, hp), settings)

    def train(self, kind: type[Experiment], hp: Mapping[str, Any], **options: Any) -> list[EpochResult]:
        training = self.start(kind, hp, **options)
        results = rest(training)
        training.close()
        return results


def rest(training: Training) -> list[EpochResult]:
    """All epochs that are left."""
    return list(iter(training.run_epoch, None))


def values(results: list[EpochResult], name: str = "validation/loss") -> list[float]:
    return [result.metrics[name] for result in results]


def framework_of(name: str, folder: Path) -> Framework:
    """The framework of this name; skips the test where it is not installed."""
    pytest.importorskip("torch" if name == "torch" else "tensorflow")
    if name == "torch":
        from raygpu.training.torch import first_step, models, solo

        kinds = Mlp, TorchHalves, TorchRamp, TorchGain, TorchNoModel
        return Framework(solo.TorchSolo, first_step.first_result, models.predict, *kinds, folder)
    from raygpu.training.keras import first_step as keras_first_step
    from raygpu.training.keras import solo as keras

    kinds = KerasMlp, KerasHalves, KerasRamp, KerasGain, KerasNoModel
    return Framework(keras.KerasSolo, keras_first_step.first_result, keras.predict, *kinds, folder)
