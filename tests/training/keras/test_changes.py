"""A Keras trial whose learning rate changes by epoch, and that takes over another one's parameters."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from raygpu.search.trials import Trial
from raygpu.training.array_of_one import ArrayOfOne
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings
from tests.contracts.frameworks import KerasRamp

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")


def ramp(name: str, seed: int) -> ArrayOfOne:
    """One weight, which each of two steps of an epoch lowers by the learning rate."""
    from raygpu.training.keras.solo import KerasSolo

    experiment, trial = KerasRamp(), Trial(name, seed, {"lr": 0.5, "batch_size": 4})
    settings = Settings(epochs=4, threads=1, precision="float32", folder=Path())
    return ArrayOfOne(KerasSolo(experiment, experiment.data(), trial, settings), trial)


def weight(array: ArrayOfOne, epochs: int = 1) -> float:
    found = 0.0
    for _ in range(epochs):
        results = array.run_epoch()
        assert results is not None
        found = next(iter(results.values())).metrics["validation/loss"]
    return found


def test_the_learning_rate_of_each_epoch_is_its_own(tmp_path: Path) -> None:
    taker, donor = ramp("t0000", 1), ramp("t0001", 2)
    first = weight(taker)
    assert weight(taker) == pytest.approx(first - 2 * 0.5)
    given = weight(donor, 2)
    donor.save_member("t0001", tmp_path)
    taker.adopt("t0000", OptimizerSettings.of({"lr": 0.5, "batch_size": 4}, [{"epoch": 3, "lr": 0.1}]))
    taker.load_member("t0000", tmp_path)
    assert not np.isclose(given, first - 1.0)
    assert weight(taker) == pytest.approx(given - 2 * 0.1)
    with pytest.raises(ValueError, match="a checkpoint of epoch 2 is no state of a trial at epoch 3"):
        taker.load_member("t0000", tmp_path)


def test_the_schedule_of_each_epoch_is_its_own() -> None:
    """A Keras trial takes over the schedule, whose rates are computed outside its traced steps."""
    array, hp = ramp("t0000", 1), {"lr": 0.5, "batch_size": 4}
    first = weight(array, 2)
    settings = OptimizerSettings.of(hp, [{"epoch": 3, "schedule": "cosine"}])
    array.adopt("t0000", settings)
    third = sum(settings.in_epoch(3).lr_at(step, 2, 4) for step in (4, 5))
    assert third < 0.75
    assert weight(array) == pytest.approx(first - third)
