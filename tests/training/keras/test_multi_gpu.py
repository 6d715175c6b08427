"""A Keras model over several devices by one call: the same training as on one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ranks import compute_in, on_keras_ranks
from tests.small_data import few


def network(keras: Any, *, named: bool = False) -> Any:
    keras.utils.set_random_seed(1)
    if not named:
        layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input((64,)), *layers])
    inputs = {name: keras.Input((64,), name=name) for name in ("a", "b")}
    both = keras.layers.Concatenate()([inputs["a"], inputs["b"]])
    return keras.Model(inputs, {"digit": keras.layers.Dense(10, name="digit")(both)})


def recorder(keras: Any, placed: list[str]) -> Any:
    """A layer that changes nothing, and notes where it runs."""

    class Recorder(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            outputs = 1.0 * inputs
            placed.append(getattr(outputs, "device", ""))
            return outputs

    return Recorder()


def fitted(ranks: Any) -> Any:
    """Weights after two epochs by `fit` of the model alone and over two devices, and the sizes of the parts."""
    import raygpu
    from raygpu.training.keras.quiet_import import keras, tf

    compute_in("float64")
    splits, found, placed = few(167), {}, []
    for name in ("alone", "sliced"):
        model = network(keras)
        whole = model
        if name == "sliced":
            model.add(recorder(keras, placed))
            whole = raygpu.multi_gpu_model(model, gpus=[0, 1], ratios=[3, 2])
            assert whole._split(np.int32(100)).tolist() == [60, 40]
            assert whole._split(np.int32(1)).tolist() == [1, 0]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        whole.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
        whole.fit(splits.train_inputs, splits.train_targets, batch_size=50, epochs=2, shuffle=False, verbose=0)
        found[name] = np.concatenate([weight.ravel() for weight in model.get_weights()])
    norm = keras.Sequential([keras.Input((64,)), keras.layers.BatchNormalization(), keras.layers.Dense(10)])
    outputs = raygpu.multi_gpu_model(norm, gpus=2)(splits.train_inputs[:1], training=True)
    assert outputs.shape == (1, 10)
    assert all(np.isfinite(weight).all() for weight in norm.get_weights())
    named = network(keras, named=True)
    inputs = {"a": tf.ones((5, 64)), "b": tf.zeros((5, 64))}
    outputs = raygpu.multi_gpu_model(named, gpus=2, ratios=[4, 1])(inputs)
    same = np.allclose(outputs["digit"], named(inputs)["digit"])
    return found, sorted({str(device)[-5:] for device in placed if device}), same


@pytest.mark.slow
def test_the_sliced_model_learns_what_the_model_alone_does() -> None:
    """167 = 3 x 50 + 17."""
    found, devices, same = on_keras_ranks(1, fitted, local=2)[0]
    assert np.linalg.norm(found["sliced"] - found["alone"]) <= 1e-12 * np.linalg.norm(found["alone"])
    assert devices == ["CPU:0", "CPU:1"]
    assert same


@pytest.mark.parametrize(
    ("gpus", "ratios", "fault"),
    [
        ([0, 9], None, r"gpus: read 9; TensorFlow sees \d+ [CG]PU device"),
        ([0], [1, 2], r"ratios: read \[1.0, 2.0\], 2 numbers for 1 GPUs"),
        ([0], [0], r"ratios: read \[0.0\]; allowed: numbers above 0"),
        (0, None, "gpus: read 0; one is needed at least"),
    ],
)
def test_what_cannot_be(gpus: Any, ratios: Any, fault: str) -> None:
    import raygpu
    from raygpu.training.keras.quiet_import import keras

    with pytest.raises(ValueError, match=fault):
        raygpu.multi_gpu_model(network(keras), gpus, ratios)


def own_loss(targets: Any, outputs: Any) -> Any:
    """A function that Keras does not know by its name."""
    from raygpu.training.keras.quiet_import import keras

    return keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)


def parallel(keras: Any, ratios: Any = (3, 2)) -> Any:
    """A compiled parallel model on two devices, and the model in it."""
    import raygpu

    model = network(keras)
    whole = raygpu.multi_gpu_model(model, gpus=[0, 1], ratios=ratios)
    whole.compile(optimizer=keras.optimizers.Adam(0.01), loss=own_loss, metrics=["accuracy"])
    return whole, model


def same_weights(first: Any, second: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(first.get_weights(), second.get_weights(), strict=True))


def same_optimizer(first: Any, second: Any) -> bool:
    pairs = zip(first.optimizer.variables, second.optimizer.variables, strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def checkpointed(ranks: Any, folder: str) -> dict[str, bool]:
    """What callbacks, `save` and `save_weights` of a parallel model write, and what loads it."""
    from raygpu.training.keras.quiet_import import keras

    os.chdir(folder)
    splits = few(100)
    data = {"x": splits.train_inputs, "y": splits.train_targets, "batch_size": 50, "shuffle": False, "verbose": 0}
    whole, model = parallel(keras)
    checkpoint = keras.callbacks.ModelCheckpoint
    written = [checkpoint("{epoch}.keras"), checkpoint("latest.weights.h5", save_weights_only=True)]
    whole.fit(epochs=2, callbacks=[*written, keras.callbacks.BackupAndRestore("backup")], **data)
    whole.save("saved.h5")
    found = {"the model stays as it was": not model.compiled and not hasattr(model, "optimizer")}
    loaded = keras.models.load_model("2.keras", custom_objects={"own_loss": own_loss})
    found["a checkpoint loads as the model"] = type(loaded) is keras.Sequential and same_weights(loaded, model)
    found["with the optimizer's state"] = same_optimizer(loaded, whole)
    fresh = network(keras)
    for name in ("latest.weights.h5", "2.keras", "saved.h5"):
        fresh.set_weights([0 * weight for weight in fresh.get_weights()])
        fresh.load_weights(name)
        found[f"the model loads the weights of {name}"] = same_weights(fresh, model)

    # Two epochs more, here and in another parallel model made of a checkpoint.
    import raygpu

    again = raygpu.multi_gpu_model(loaded, gpus=2, ratios=(3, 2))
    again.compile(optimizer=loaded.optimizer, loss=own_loss)
    for each in (whole, again):
        each.fit(epochs=2, **data)
    found["the training goes on from a checkpoint"] = same_weights(loaded, model) and same_optimizer(again, whole)
    whole.load_weights("1.keras")
    found["the optimizer's state is loaded as well"] = int(whole.optimizer.iterations) == 2
    fresh.save_weights("model.weights.h5")
    whole.load_weights("model.weights.h5")
    found["the parallel model loads the model's weights"] = same_weights(whole, fresh)
    return found


def test_checkpoints_are_the_model_itself(tmp_path: Path) -> None:
    found = on_keras_ranks(1, checkpointed, str(tmp_path), local=2)[0]
    assert all(found.values()), [name for name, holds in found.items() if not holds]
    from raygpu.training.keras.quiet_import import keras

    loaded = keras.models.load_model(tmp_path / "2.keras", compile=False)  # where there is one device
    assert loaded(few(100).train_inputs).shape == (100, 10)


def copied(ranks: Any, folder: str) -> dict[str, bool]:
    """Parallel models made of the configuration of another one."""
    from raygpu.training.keras.quiet_import import keras, tf

    os.chdir(folder)
    whole, _ = parallel(keras)
    inputs = few(100).train_inputs
    wanted = whole(inputs)
    found = {"the model is built": whole.built}
    with pytest.warns(UserWarning, match="is not compiled: its loss or a metric is not registered"):
        clone = keras.models.clone_model(whole)
    clone.set_weights(whole.get_weights())
    again = type(whole).from_config(whole.get_config())
    found["a clone is a parallel model of its own"] = type(clone) is type(whole) and clone.model is not whole.model
    found["with the same parts"] = clone._sizes(tf.constant(10)).numpy().tolist() == [6, 4]
    found["and the same function"] = np.allclose(clone(inputs), wanted)
    found["so is one of a configuration"] = again.name == whole.name and again._places == whole._places
    whole.compile(optimizer="adam", loss="mse")
    keras.saving.save_model(whole, "parallel.keras")
    loaded = keras.saving.load_model("parallel.keras")
    found["what save_model writes is the parallel model"] = type(loaded) is type(whole) and loaded.compiled
    found["with its weights"] = same_weights(loaded, whole)
    whole.export("exported", verbose=False)
    exported = tf.saved_model.load("exported")
    found["an exported model is the model itself"] = np.allclose(exported.serve(inputs), wanted, atol=1e-6)
    return found


def test_copies_are_parallel_models(tmp_path: Path) -> None:
    found = on_keras_ranks(1, copied, str(tmp_path), local=2)[0]
    assert all(found.values()), [name for name, holds in found.items() if not holds]
    from raygpu.training.keras.quiet_import import keras

    with pytest.warns(
        UserWarning, match=r"made for devices \[0, 1\], and TensorFlow sees 1 .PU device: it runs on \[0\]"
    ):
        fewer = keras.saving.load_model(tmp_path / "parallel.keras")
    assert fewer(few(100).train_inputs).shape == (100, 10)


def test_a_model_that_is_not_built_or_compiled_is_saved(tmp_path: Path) -> None:
    import raygpu
    from raygpu.training.keras.quiet_import import keras

    model = keras.Sequential([keras.layers.Dense(3)])
    whole = raygpu.multi_gpu_model(model, gpus=1)
    assert not whole.built
    assert whole(np.zeros((2, 4), np.float32)).shape == (2, 3)
    assert whole.built
    whole.save(tmp_path / "model.keras")
    assert same_weights(keras.models.load_model(tmp_path / "model.keras"), model)


def test_a_model_with_a_step_of_its_own_is_refused() -> None:
    import raygpu
    from raygpu.training.keras.quiet_import import keras

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(ValueError, match=r"model: Own has a train_step\(\) of its own"):
        raygpu.multi_gpu_model(Own([keras.layers.Dense(3)]), gpus=1)


def masked(ranks: Any) -> list[float]:
    """The loss of sequences with a mask, by the model and over two devices."""
    import raygpu
    from raygpu.training.keras.quiet_import import keras

    inputs = np.random.default_rng(0).integers(0, 4, (50, 6)).astype(np.int32)
    layers = [keras.layers.Embedding(20, 8, mask_zero=True), keras.layers.Dense(3)]
    model = keras.Sequential([keras.layers.Input((6,), dtype="int32"), *layers])
    found = []
    for each in (model, raygpu.multi_gpu_model(model, gpus=2, ratios=[3, 2])):
        each.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        found.append(each.evaluate(inputs, inputs % 3, batch_size=50, verbose=0))
    return found


def test_masks_are_kept() -> None:
    alone, parallel = on_keras_ranks(1, masked, local=2)[0]
    assert parallel == pytest.approx(alone, rel=1e-6)


def saturated(ranks: Any) -> list[float]:
    """The loss of probabilities next to 0 and 1, by the model and over two devices."""
    import raygpu
    from raygpu.training.keras.quiet_import import keras

    splits = few(64)
    layers = [keras.layers.Rescaling(100), keras.layers.Dense(10, activation="softmax")]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy()
    inputs, targets = splits.train_inputs, splits.train_targets
    return [float(loss(targets, each(inputs))) for each in (model, raygpu.multi_gpu_model(model, gpus=[0, 1]))]


def test_logits_of_probabilities_are_kept() -> None:
    alone, parallel = on_keras_ranks(1, saturated, local=2)[0]
    assert alone > 20, "more than the loss of the smallest probability that Keras takes without logits"
    assert parallel == pytest.approx(alone, rel=1e-5)
