"""A Keras model trained by several devices is the one that a single process trains on whole batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.parallel_training import NO_OWN_SPEED
from raygpu.training.distributed.ranks import ParallelSettings
from tests.keras_cases import KerasOverflowingSamples
from tests.ranks import compute_in, on_keras_ranks
from tests.small_data import few

HP = {"hidden": 16, "lr": 0.05, "momentum": 0.9, "batch_size": 50, "clip_norm": 1.0, "weight_decay": 0.01}
SETTINGS = Settings(epochs=2, threads=1, precision="float32", folder=Path())
SPREADS = [((3.0, 2.0), 1, 2), ((3.0, 2.0), 2, 1), pytest.param((5.0, 3.0, 2.0), 3, 1, marks=pytest.mark.slow)]
SPREAD_IDS = ["two devices of a process", "two processes", "three processes"]


class Mlp(KerasExperiment):
    """Draws nothing."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential(
            [
                layers.Input((64,)),
                layers.Dense(hp["hidden"], activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3)),
                layers.Dense(10),
            ]
        )

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        return keras.ops.mean(losses)


class Drawing(Mlp):
    """With dropout, noise of keras.random and of the experiment's own generator, and BatchNormalization."""

    def __init__(self) -> None:
        import keras

        self._own = keras.random.SeedGenerator(5)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        inner = [layers.Dense(hp["hidden"]), layers.BatchNormalization(), layers.Dropout(0.3), layers.Dense(10)]
        return keras.Sequential([layers.Input((64,)), *inner])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        shape = keras.ops.shape(inputs)
        return inputs + 0.1 * keras.random.normal(shape) + 0.1 * keras.random.normal(shape, seed=self._own)


def training(
    ranks: Any,
    parallel: ParallelSettings,
    experiment: Any,
    *,
    epochs: int = 2,
    request: str = "",
    per_epoch: int | None = None,
) -> Any:
    from raygpu.training.distributed.keras_ranks import KerasParallel

    settings = Settings(epochs, 1, "float32", Path())
    trial, splits = Trial("t0000", 3, HP), replace(few(167), per_epoch=per_epoch)
    with ranks.strategy.scope():
        experiment = experiment()
    return KerasParallel(experiment, splits, trial, settings, parallel, ranks, request=lambda: request)  # type: ignore[arg-type,return-value]


class Keeping(Mlp):
    """Keeps a layer that is built with the model, and one that is built already."""

    def __init__(self) -> None:
        import keras

        self.first, self.second = keras.layers.Dense(16), keras.layers.Dense(8)
        self.second.build((None, 16))

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((64,)), self.first, self.second, keras.layers.Dense(10)])


def kept_layers(ranks: Any) -> Any:
    """The first weights of a trial, and of a training on these ranks."""
    from raygpu.training.keras.solo import KerasSolo
    from raygpu.training.own_copy import own_copy

    with ranks.strategy.scope():
        experiment = Keeping()
    trial = KerasSolo(own_copy(experiment), few(167), Trial("t0000", 3, HP), SETTINGS)
    own = training(ranks, ParallelSettings(50), lambda: experiment)
    return parameters(SimpleNamespace(solo=trial)), parameters(own)


@pytest.mark.parametrize("local", [1, 2])
def test_kept_layers_begin_as_in_a_trial(local: int) -> None:
    ((trial, own),) = on_keras_ranks(1, kept_layers, local=local)
    assert np.array_equal(own, trial)


class Joint(Mlp):
    """Its BatchNormalization is of the samples of all devices, which wait for each other in it."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        inner = [layers.Dense(hp["hidden"]), layers.BatchNormalization(synchronized=True), layers.Dense(10)]
        return keras.Sequential([layers.Input((64,)), *inner])


class Frozen(Joint):
    """Its layers but the last are frozen, and normalise by their moving statistics: no device waits for another."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model = super().model(hp)
        for layer in model.layers[:-1]:
            layer.trainable = False
        return model


class Penalised(Joint):
    """A layer before it adds to the loss."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        first, *others = super().model(hp).layers
        return keras.Sequential([keras.Input((64,)), first, keras.layers.ActivityRegularization(l2=0.5), *others])


class PenalisedFrozen(Penalised):
    """Its BatchNormalization waits for no device."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        model = super().model(hp)
        model.layers[2].trainable = False
        return model


def parameters(own: Any) -> np.ndarray:
    return np.concatenate([variable.numpy().ravel() for variable in own.solo.model.trainable_variables])


def trained(ranks: Any, parallel: ParallelSettings, per_epoch: int | None = None) -> Any:
    """In float64; the parameters after two epochs, and what was told last."""

    compute_in("float64")
    own, told = training(ranks, parallel, Mlp, per_epoch=per_epoch), None
    while (progress := own.advance()) is not None:
        told = progress
    return parameters(own), told


def alone(ranks: Any, per_epoch: int | None = None) -> Any:
    """As `trained`, by the loop of trials."""
    from raygpu.training.keras.solo import KerasSolo

    compute_in("float64")
    solo, result = KerasSolo(Mlp(), replace(few(167), per_epoch=per_epoch), Trial("t0000", 3, HP), SETTINGS), None
    while (ended := solo.run_epoch()) is not None:
        result = ended
    return np.concatenate([variable.numpy().ravel() for variable in solo.model.trainable_variables]), result


def left_out(ranks: Any, parallel: ParallelSettings | None) -> Any:
    """In float64, where the steps alone are those of fp16: the weights, the loss scale and the noise scale."""
    from raygpu.training.distributed.keras_ranks import KerasParallel
    from raygpu.training.keras import solo

    compute_in("float64")
    trial, settings = Trial("t0000", 3, {**HP, "batch_size": 8}), Settings(1, 1, "fp16", Path())
    mixed, solo.MIXED = solo.MIXED, {}
    try:
        if parallel is None:
            own: Any = solo.KerasSolo(KerasOverflowingSamples(), few(), trial, settings)
            own.run_epoch()
            return parameters(SimpleNamespace(solo=own)), float(own.optimizer.dynamic_scale.numpy()), None
        own = KerasParallel(KerasOverflowingSamples(), few(), trial, settings, parallel, ranks)
        while own.advance() is not None:
            pass
        return parameters(own), float(own.solo.optimizer.dynamic_scale.numpy()), own.coordinator.noise.scale()
    finally:
        solo.MIXED = mixed


@pytest.mark.parametrize(("processes", "local"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_all_devices_leave_out_a_step_of_fp16_that_overflows_on_one(processes: int, local: int) -> None:
    wanted, scale, _ = on_keras_ranks(1, left_out, None, local=2)[0]
    assert 2.0**-9 < scale < 2.0**16
    for own, own_scale, noise in on_keras_ranks(
        processes, left_out, ParallelSettings(8, ratios=(3.0, 2.0)), local=local
    ):
        assert np.linalg.norm(own - wanted) <= 1e-12 * np.linalg.norm(wanted)
        assert own_scale == scale
        assert noise is None or np.isfinite(noise)


@pytest.fixture(scope="module")
def solo() -> Any:
    """On the first of two devices of a process that other tests have, too: its start takes seconds."""
    return on_keras_ranks(1, alone, local=2)[0]


@pytest.mark.parametrize(("ratios", "processes", "local"), SPREADS, ids=SPREAD_IDS)
def test_devices_train_as_one_process_does(solo: Any, ratios: tuple[float, ...], processes: int, local: int) -> None:
    """167 = 3 x 50 + 17."""
    wanted, result = solo
    found = on_keras_ranks(processes, trained, ParallelSettings(50, ratios=ratios), local=local)
    for own, told in found:
        assert np.linalg.norm(own - wanted) <= 1e-12 * np.linalg.norm(wanted)
        assert told.shares == {2: (30, 20), 3: (25, 15, 10)}[len(ratios)]
        assert all(rate and rate > 0 for rate in told.rates)
        assert told.result.metrics["train/loss"] == pytest.approx(result.metrics["train/loss"], rel=1e-6)
    metrics = found[0][1].result.metrics
    assert metrics == pytest.approx(result.metrics, rel=1e-6)


@pytest.mark.parametrize("per_epoch", [250, pytest.param(60, marks=pytest.mark.slow)])
def test_an_epoch_of_another_length_is_the_same(per_epoch: int) -> None:
    wanted, result = on_keras_ranks(1, alone, per_epoch, local=2)[0]
    found, told = on_keras_ranks(1, trained, ParallelSettings(50), per_epoch, local=2)[0]
    assert np.linalg.norm(found - wanted) <= 1e-12 * np.linalg.norm(wanted)
    assert told.result.num_samples == per_epoch
    assert told.result.metrics == pytest.approx(result.metrics, rel=1e-6)


@pytest.mark.slow
def test_a_batch_taken_in_parts_is_the_same(solo: Any) -> None:
    (found, _), *_ = on_keras_ranks(2, trained, ParallelSettings(50, accumulate=3, ratios=(3.0, 2.0)))
    assert np.linalg.norm(found - solo[0]) <= 1e-12 * np.linalg.norm(solo[0])


def saved_and_gone_on(ranks: Any, folder: str) -> Any:
    parallel = ParallelSettings(20, ratios=(3.0, 2.0))
    whole = training(ranks, parallel, Drawing, epochs=3)
    while whole.advance() is not None:
        pass
    first = training(ranks, parallel, Drawing, epochs=3, request="checkpoint")
    first.advance()  # ends within the first epoch
    assert 0 < first.step < 8
    first.save(Path(folder))
    ranks.gather([None] * ranks.local)
    again = training(ranks, parallel, Drawing, epochs=3)
    again.load(Path(folder))
    while again.advance() is not None:
        pass
    return parameters(whole), parameters(again), again.notes, [len(states) for states in again._random]


@pytest.mark.parametrize(("processes", "local"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_training_goes_on_within_an_epoch_as_if_nothing_had_been(tmp_path: Path, processes: int, local: int) -> None:
    for whole, again, notes, states in on_keras_ranks(processes, saved_and_gone_on, str(tmp_path), local=local):
        assert np.array_equal(again, whole)
        assert any("BatchNormalization" in note for note in notes)
        assert states == [3] * local, "Dropout's, the experiment's own, and the one of keras.random"


def joint(ranks: Any, kind: type[Joint]) -> Any:
    """The speeds of the devices alone, and the notes."""
    own = training(ranks, ParallelSettings(50, auto_shares=True), kind, epochs=1)
    rates = set()
    while (progress := own.advance()) is not None:
        rates |= {*progress.rates, progress.efficiency}
    return rates, own.notes


def test_devices_that_wait_for_each_other_in_a_layer_have_no_own_speed() -> None:
    ((rates, notes),) = on_keras_ranks(1, joint, Joint, local=2)
    assert rates == {None}
    assert NO_OWN_SPEED.format(layers="synchronized BatchNormalization") in notes


def test_frozen_layers_wait_for_no_device() -> None:
    ((rates, notes),) = on_keras_ranks(1, joint, Frozen, local=2)
    assert rates != {None}
    assert not [note for note in notes if "BatchNormalization" in note]


def penalised(ranks: Any, kind: type[Mlp]) -> Any:
    """The parameters in float64, or the message of the refusal."""
    compute_in("float64")
    try:
        own = training(ranks, ParallelSettings(50), kind)
    except ValueError as error:
        return str(error)
    while own.advance() is not None:
        pass
    return parameters(own)


def test_penalties_beside_a_layer_that_waits_for_other_devices_of_the_process_are_refused() -> None:
    (fault,) = on_keras_ranks(1, penalised, Penalised, local=2)
    assert fault.startswith("layers add to the loss, by add_loss() or activity_regularizer, and layers wait for")


def test_penalties_beside_layers_that_wait_for_no_device_are_those_of_the_batch() -> None:
    (alone,) = on_keras_ranks(1, penalised, PenalisedFrozen)
    (found,) = on_keras_ranks(1, penalised, PenalisedFrozen, local=2)
    assert np.linalg.norm(found - alone) <= 1e-12 * np.linalg.norm(alone)


@pytest.mark.slow
def test_penalties_beside_a_layer_that_waits_for_other_processes_are_those_of_the_batch() -> None:
    (alone,) = on_keras_ranks(1, penalised, Penalised)
    for found in on_keras_ranks(2, penalised, Penalised):
        assert np.linalg.norm(found - alone) <= 1e-12 * np.linalg.norm(alone)


def another_epoch(ranks: Any, folder: str) -> Any:
    own = training(ranks, ParallelSettings(20), Mlp)
    while own.step < 3:
        own.advance()
    own.save(Path(folder))
    again = training(ranks, ParallelSettings(20), Mlp, per_epoch=40)
    again.load(Path(folder))
    notes, step = again.notes, again.step
    while (progress := again.advance()).result is None:
        assert progress.step < progress.steps
    return step, notes, progress.epoch, progress.step, progress.result.metrics["train/loss"]


def test_an_epoch_begins_anew_with_another_number_of_samples(tmp_path: Path) -> None:
    ((begun, notes, epoch, step, loss),) = on_keras_ranks(1, another_epoch, str(tmp_path), local=2)
    assert begun == 0
    assert "within epoch 1 of 167 training samples, and there are 40: the epoch begins anew" in notes[-1]
    assert (epoch, step) == (1, 2)
    assert np.isfinite(loss)


class Collecting(Mlp):
    """Its metric is an object with variables."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        self._metric = keras.metrics.SparseCategoricalAccuracy()
        return super().model(hp)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        self._metric.reset_state()
        self._metric.update_state(targets, outputs)
        return {"accuracy": self._metric.result()}


def test_an_evaluation_that_would_wait_for_other_workers_is_refused() -> None:
    faults = on_keras_ranks(2, penalised, Collecting)
    assert all(fault.startswith("loss() or metrics() writes to a variable") for fault in faults)
    (alone,), (found,) = on_keras_ranks(1, penalised, Collecting), on_keras_ranks(1, penalised, Collecting, local=2)
    assert np.linalg.norm(found - alone) <= 1e-12 * np.linalg.norm(alone)


def joined_batch(ranks: Any, folder: str) -> Any:
    """The end of an epoch whose last samples are a step of their own, or join the one before the checkpoint."""
    own = training(ranks, ParallelSettings(10), Mlp, per_epoch=22)
    own.take_steps(2)
    own.save(Path(folder))
    again = training(ranks, ParallelSettings(10, least=3), Mlp, per_epoch=22)
    again.load(Path(folder))
    progress = again.advance()
    return again.notes[-1], progress.diverged, progress.result.metrics["train/loss"]


def test_samples_of_a_last_batch_that_joins_a_step_taken_before_are_told(tmp_path: Path) -> None:
    ((note, diverged, loss),) = on_keras_ranks(1, joined_batch, str(tmp_path), local=2)
    assert note.startswith("the last 2 training samples of epoch 1 are left out")
    assert not diverged
    assert np.isfinite(loss)


def another_batch(ranks: Any, folder: str) -> str:
    own = training(ranks, ParallelSettings(20), Mlp)
    own.advance()
    own.save(Path(folder))
    with pytest.raises(ValueError, match="trained with batches of 20, not of 40") as raised:
        training(ranks, ParallelSettings(40), Mlp).load(Path(folder))
    return str(raised.value)


@pytest.mark.slow
def test_another_batch_is_refused_within_an_epoch(tmp_path: Path) -> None:
    assert on_keras_ranks(1, another_batch, str(tmp_path), local=2)
