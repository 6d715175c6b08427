"""What every image experiment promises, in torch and in Keras, at tiny sizes and on synthetic data."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import cifar, datasets, mnist
from experiments.digits import KerasMlp, Mlp
from raygpu.experiment import Experiment, Splits
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from tests.image_files import folder, save_cifar, save_mnist

__all__ = ["folder"]


class ShallowResNet50(cifar.ResNet50):
    blocks = (1, 1)


class ShallowKerasResNet50(cifar.KerasResNet50):
    blocks = (1,)


HP = {"hidden": 16, "channels": 4, "layers": 1, "lr": 0.05, "momentum": 0.9, "batch_size": 16}
SHAPES: dict[type[Experiment], tuple[int, ...]] = {
    mnist.Mlp: (28, 28),
    mnist.Cnn: (28, 28),
    mnist.KerasMlp: (28, 28),
    mnist.KerasCnn: (28, 28),
    cifar.ResNet18: (3, 32, 32),
    ShallowResNet50: (3, 32, 32),
    cifar.Saturating: (3, 32, 32),
    ShallowKerasResNet50: (32, 32, 3),
}


class Case:
    """An experiment and its framework's training."""

    def __init__(self, kind: type[Experiment]) -> None:
        pytest.importorskip("torch" if kind.framework == "torch" else "tensorflow")
        self.module: Any = importlib.import_module(f"raygpu.training.{kind.framework}.solo")
        first_step: Any = importlib.import_module(f"raygpu.training.{kind.framework}.first_step")
        self.first_result = first_step.first_result
        predicting = "models" if kind.framework == "torch" else "solo"
        self.predict: Any = importlib.import_module(f"raygpu.training.{kind.framework}.{predicting}").predict
        self.experiment: Any = kind()
        self.splits = datasets.synthetic(40, 8, SHAPES[kind])

    def start(self, *, seed: int = 0, epochs: int = 3) -> Any:
        solo = self.module.TorchSolo if self.experiment.framework == "torch" else self.module.KerasSolo
        return solo(self.experiment, self.splits, Trial("t0000", seed, HP), Settings(epochs, 1, "float32", Path()))


@pytest.fixture(
    params=[pytest.param(kind, marks=pytest.mark.slow) if kind is ShallowKerasResNet50 else kind for kind in SHAPES],
    ids=lambda kind: kind.__name__,
)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def rest(training: Any) -> list[EpochResult]:
    return list(iter(training.run_epoch, None))


def values(results: list[EpochResult]) -> list[dict[str, float]]:
    return [dict(result.metrics) for result in results]


def test_trains_by_its_seed_and_goes_on_from_a_checkpoint(case: Case, tmp_path: Path) -> None:
    """Augmentation included: its chances are the seed's and the epoch's. Keras takes ten seconds to trace a ResNet."""
    first = case.start()
    whole = [first.run_epoch(), first.run_epoch()]
    first.save(tmp_path)
    whole += rest(first)
    first.close()
    assert set(whole[0].metrics) == {"train/loss", "validation/loss", "validation/accuracy"}
    assert set(case.first_result(case.experiment, case.splits.first(8), HP)[0].metrics) == set(whole[0].metrics)
    assert all(np.isfinite(value) for result in whole for value in result.metrics.values())
    second = case.start()
    second.load(tmp_path)
    (end,) = values(rest(second))
    second.close()
    assert end == pytest.approx(values(whole)[-1], rel=1e-4, abs=1e-5)
    other = case.start(seed=1, epochs=1)
    assert values(rest(other)) != values(whole)[:1]
    other.close()
    text, outputs = case.predict(case.experiment, Trial("t0000", 0, HP), tmp_path, case.splits.validation_inputs)
    assert text
    assert [output.shape for output in outputs] == [(10,)] * 8


@pytest.mark.parametrize(
    "kind", [mnist.Mlp, mnist.KerasMlp, cifar.ResNet18, cifar.KerasResNet50, Mlp, KerasMlp], ids=lambda k: k.__module__
)
def test_synthetic_data_is_shaped_as_the_real(kind: type[Experiment], folder: Path) -> None:
    save_mnist(folder / "mnist.npz")
    save_cifar(folder, packed=True)

    def kinds(splits: Splits) -> list[Any]:
        parts = (splits.train_inputs, splits.train_targets, splits.validation_inputs, splits.validation_targets)
        return [(part.shape[1:], part.dtype) for part in parts if isinstance(part, np.ndarray)]

    made, real = kind().synthetic(), kind().data()
    assert kinds(made) == kinds(real)
    if kind.__module__ == "experiments.digits":
        assert (made.num_train, len(made.validation_targets)) == (real.num_train, len(real.validation_targets))
    assert np.abs(made.train_inputs.mean() / made.train_inputs.max() - 0.5) < 0.01  # type: ignore[union-attr]
