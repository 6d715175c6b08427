"""Keras trainings in fp16 leave out the steps whose gradient is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings
from tests.keras_cases import KerasHopeless, KerasOverflowing, KerasOverflowingLoss
from tests.ranks import compute_in
from tests.small_data import few

pytestmark = pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
BATCH = 16
SGD = {"hidden": 12, "lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5, "batch_size": BATCH}
ADAMW = {"hidden": 12, "optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "batch_size": BATCH}


def solo(hp: Mapping[str, Any], kind: Any = KerasOverflowing, epochs: int = 2) -> Any:
    from raygpu.training.keras.solo import KerasSolo

    return KerasSolo(kind(), few(), Trial("t0000", 7, hp), Settings(epochs, 1, "fp16", Path()))


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The steps alone are those of fp16."""
    from raygpu.training.keras import solo

    monkeypatch.setattr(solo, "MIXED", {})
    compute_in("float64")
    yield
    compute_in("float32")


def by_hand(hp: Mapping[str, Any], epochs: int) -> tuple[list[np.ndarray], int]:
    """A loop that takes the steps whose gradient is finite: the weights, and the number of the other steps."""
    from raygpu.training.keras.optimizers import make_optimizer
    from raygpu.training.keras.quiet_import import tf
    from raygpu.training.keras.solo import initial_model

    experiment, data, left_out = KerasOverflowing(), few(), 0
    model = initial_model(experiment, hp, 7, data.train_inputs)
    optimizer = make_optimizer(OptimizerSettings.of(hp))
    optimizer.build(model.trainable_variables)
    for epoch in range(1, epochs + 1):
        order = epoch_order(7, epoch, data.num_train)
        for start, end in batch_bounds(data.num_train, BATCH):
            rows = order[start:end]
            with tf.GradientTape() as tape:
                loss = experiment.loss(model(data.train_inputs[rows]), data.train_targets[rows])
            gradients = tape.gradient(loss, model.trainable_variables)
            if all(np.isfinite(gradient).all() for gradient in gradients):
                optimizer.learning_rate = np.float32(hp["lr"])
                optimizer.apply(gradients, model.trainable_variables)
            else:
                left_out += 1
    return model.get_weights(), left_out


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("hp", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_training_equals_a_loop_over_the_finite_steps(hp: dict[str, Any]) -> None:
    wanted, left_out = by_hand(hp, 2)
    training = solo(hp)
    results = list(iter(training.run_epoch, None))
    assert left_out >= 3, "or nothing was tested"
    assert all(math.isfinite(result.metrics["train/loss"]) for result in results)
    for found, expected in zip(training.model.get_weights(), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert float(training.optimizer.dynamic_scale) == 2.0 ** (16 - left_out)


def test_half_precision_learns_and_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    whole, first, second = (solo(ADAMW, epochs=6) for _ in range(3))
    wanted = [result.metrics for result in iter(whole.run_epoch, None)]
    assert {layer.compute_dtype for layer in whole.model.layers} == {"float16"}
    assert {variable.dtype for variable in whole.model.trainable_variables} == {"float32"}
    assert wanted[-1]["validation/accuracy"] > 0.4
    for _ in range(3):
        first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    found = [result.metrics for result in iter(second.run_epoch, None)]
    assert found == [pytest.approx(metrics, rel=1e-3) for metrics in wanted[3:]]
    assert float(second.optimizer.dynamic_scale) == float(whole.optimizer.dynamic_scale) < 2.0**16


def test_a_loss_that_is_not_finite_is_left_out_with_its_step() -> None:
    training = solo(SGD, KerasOverflowingLoss)
    assert all(0 < result.metrics["train/loss"] < 3 for result in iter(training.run_epoch, None))
    assert float(training.optimizer.dynamic_scale) < 2.0**16


def test_gradients_that_are_never_finite_are_told_as_a_loss_that_is_none() -> None:
    losses = [result.metrics["train/loss"] for result in iter(solo(SGD, KerasHopeless, 5).run_epoch, None)]
    assert math.isfinite(losses[0])
    assert math.isnan(losses[-1])
