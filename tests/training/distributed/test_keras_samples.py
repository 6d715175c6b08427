"""Keras trainings on several devices whose samples are read meanwhile: as one device trains on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import Splits, dataset_splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import ParallelSettings
from tests.ranks import compute_in, on_keras_ranks
from tests.training.keras.test_data import Named, Read, ReadNamed, Streamed, Torn, Vectors

pytest.importorskip("tensorflow")
TRIAL = Trial("t0000", 3, {"lr": 0.1, "momentum": 0.9, "batch_size": 20})


class Plain(Read):
    """Each read of a sample draws noise; the model draws nothing."""

    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1, noise=0.1), Vectors(32, 2))

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)])


class PlainStream(Plain, Streamed):
    data = Streamed.data


class PlainNamed(ReadNamed):
    def data(self) -> Splits:
        return dataset_splits(Named(96, 1, noise=0.1), Named(32, 2))


def training(ranks: Any, kind: type[Read], parallel: ParallelSettings, epochs: int = 2, request: Any = "") -> Any:
    from raygpu.training.distributed.keras_ranks import KerasParallel

    compute_in("float64")
    with ranks.strategy.scope():
        experiment = kind()
    settings = Settings(epochs, 1, "float32", Path())
    return KerasParallel(experiment, experiment.data(), TRIAL, settings, parallel, ranks, request=lambda: request)


def weights(own: Any) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in own.model.trainable_variables])


def trained(own: Any) -> tuple[np.ndarray, Any]:
    told = None
    while (progress := own.advance()) is not None:
        told = progress
    found = weights(own.solo)
    own.close()
    return found, told


def on_devices(ranks: Any, kind: type[Read], parallel: ParallelSettings) -> Any:
    return trained(training(ranks, kind, parallel))


def alone(ranks: Any, kind: type[Read]) -> Any:
    from raygpu.training.keras.solo import KerasSolo

    compute_in("float64")
    own = KerasSolo(kind(), kind().data(), TRIAL, Settings(2, 1, "float32", Path()))
    *_, result = iter(own.run_epoch, None)
    found = weights(own)
    own.close()
    return found, result


@pytest.mark.parametrize("kind", [Plain, PlainNamed, PlainStream])
@pytest.mark.parametrize(("processes", "local"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_devices_train_as_one_does(kind: type[Read], processes: int, local: int) -> None:
    """96 = 4 x 20 + 16."""
    wanted, result = on_keras_ranks(1, alone, kind, local=2)[0]
    parallel = ParallelSettings(20, accumulate=2, ratios=(3.0, 2.0))
    for found, told in on_keras_ranks(processes, on_devices, kind, parallel, local=local):
        assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)
        assert told.result.metrics["train/loss"] == pytest.approx(result.metrics["train/loss"], rel=1e-9)
        assert told.result.waited_s > 0


def moved_and_gone_on(ranks: Any, folder: str) -> Any:
    """An epoch in which the split of batches moves after the first exchange, and the training stops and goes on."""
    parallel = ParallelSettings(20, ratios=(3.0, 2.0))
    own = training(ranks, Plain, parallel, request="checkpoint")
    own.advance()
    assert 0 < own.step < 5
    own.save(Path(folder))
    again = training(ranks, Plain, parallel)
    again.load(Path(folder))
    again.coordinator.balancer.ratios = [1.0, 4.0]
    assert again.coordinator.shares != own.coordinator.shares
    return trained(again)[0]


def test_samples_follow_a_split_that_moves_and_a_training_that_goes_on(tmp_path: Path) -> None:
    wanted, _ = on_keras_ranks(1, alone, Plain, local=2)[0]
    (found,) = on_keras_ranks(1, moved_and_gone_on, str(tmp_path), local=2)
    assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)


def torn(ranks: Any) -> str:
    from raygpu.training.data.fields import SampleError

    own = training(ranks, Torn, ParallelSettings(20))
    with pytest.raises(SampleError) as raised:
        trained(own)
    return str(raised.value)


def test_a_sample_that_cannot_be_read_is_named() -> None:
    assert on_keras_ranks(1, torn, local=2) == ["sample 77 of the train data cannot be read: OSError: torn"]
