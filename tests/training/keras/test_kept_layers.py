"""Layers that an experiment keeps, over the Keras trials of one worker: each trial begins with them as they were made,
or is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from raygpu import KerasExperiment, Splits
from raygpu.config.source import Source
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.start import start
from tests.small_data import few


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


class Kept(KerasExperiment):
    """Gives the layers that a function returns to all of its models."""

    def __init__(self, make: Callable[[], Any]) -> None:
        import keras

        keras.utils.set_random_seed(1)
        self.layers = {"encoder": make()}

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        encoder = self.layers["encoder"]
        encoder.trainable = hp.get("trains", True)
        return keras.Sequential([keras.layers.Input((64,)), encoder, keras.layers.Dense(10)])


def trial(code: Kept, **hp: Any) -> list[Any]:
    source, own = Source("keras", "here", str(Path.cwd())), Trial("t0000", 3, {"lr": 0.1, "batch_size": 16, **hp})
    training = start(source, code, code.data(), own, Settings(2, 1, "float32", Path()))
    names = [layer.name for layer in training.model.layers]  # type: ignore[attr-defined]
    metrics = [result.metrics for result in iter(training.run_epoch, None)]
    training.close()
    return [names, metrics]


def unbuilt() -> Any:
    import keras

    return keras.layers.Dense(8, activation="relu")


def built() -> Any:
    import keras

    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.BatchNormalization()]
    return keras.Sequential([keras.layers.Input((64,)), *layers])


@pytest.mark.parametrize("make", [unbuilt, built])
def test_trials_of_a_worker_begin_with_the_same_layers(make: Callable[[], Any]) -> None:
    import keras

    keras.utils.clear_session()
    code = Kept(make)
    first = trial(code)
    assert trial(code) == first
    assert trial(code) == first
    keras.utils.clear_session()
    assert trial(Kept(make)) == first


def uncopyable() -> Any:
    import keras

    class Encoder(keras.layers.Layer):
        """Has an argument that is in no get_config()."""

        def __init__(self, size: int) -> None:
            super().__init__()
            self.kept = self.add_weight(shape=(64, size), initializer="ones")

        def call(self, x: Any) -> Any:
            return x @ self.kept

    return Encoder(8)


def test_a_layer_that_cannot_be_copied_trains_in_one_trial_alone() -> None:
    code = Kept(uncopyable)
    trial(code)
    for trains in (True, False):
        with pytest.raises(ValueError, match=r"returned the variable .* again, which an earlier model has: make new"):
            trial(code, trains=trains)


def test_a_frozen_layer_that_cannot_be_copied_is_given_to_trials_until_it_changes() -> None:
    code = Kept(uncopyable)
    assert trial(code, trains=False)[1] == trial(code, trains=False)[1]
    code.layers["encoder"].kept.assign(code.layers["encoder"].kept + 1)
    with pytest.raises(ValueError, match="returned the variable"):
        trial(code, trains=False)


def test_loaded_models_have_layers_of_their_own(tmp_path: Path) -> None:
    from raygpu.training.keras.solo import WEIGHTS, trained_model

    code, own = Kept(built), Trial("t0000", 3, {"lr": 0.1, "batch_size": 16})
    wanted = []
    for number in range(2):
        model = Kept(built).model({})
        for variable in model.trainable_variables:
            variable.assign(variable + number)
        wanted.append(model.layers[0].layers[0].kernel.numpy())
        (tmp_path / str(number)).mkdir()
        model.save_weights(tmp_path / str(number) / WEIGHTS)
    models = [trained_model(code, own, tmp_path / str(number), few().train_inputs) for number in range(2)]
    for model, kernel in zip(models, wanted, strict=True):
        assert (model.layers[0].layers[0].kernel.numpy() == kernel).all()


def test_looks_at_one_experiment_may_train_its_layers_again() -> None:
    from raygpu.training.keras.solo import KerasSolo

    code, own = Kept(uncopyable), Trial("t0000", 3, {"lr": 0.1, "batch_size": 16})
    for _ in range(2):
        assert KerasSolo(code, code.data(), own, Settings(1, 1, "float32", Path())).run_epoch() is not None


class KeptGenerator(Kept):
    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        return inputs + keras.random.normal((64,), seed=self.layers["encoder"])


def test_a_kept_generator_is_refused_by_name() -> None:
    import keras

    with pytest.raises(ValueError, match=r"^self\.layers keeps a keras\.random\.SeedGenerator"):
        trial(KeptGenerator(lambda: keras.random.SeedGenerator(5)))
