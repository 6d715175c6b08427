"""A Keras trial alone: its checkpoint in bfloat16, masks, logits and metrics in half precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Mean, Splits, Sum
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from tests.ranks import compute_in
from tests.small_data import few


@pytest.fixture(autouse=True)
def needs_keras() -> None:
    """Not imported with this module: TensorFlow takes seconds, in a process that may run none of these tests."""
    pytest.importorskip("keras")


def solo(experiment: Any, precision: Any = "float32", **hp: Any) -> Any:
    from raygpu.training.keras.solo import KerasSolo

    return KerasSolo(experiment, experiment.data(), Trial("t0000", 3, hp), Settings(2, 1, precision, Path()))


class Brief(KerasExperiment):
    """All of its variables are bfloat16."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(10)]
        return keras.Sequential([keras.layers.Input((64,)), *layers])


def test_a_model_of_bfloat16_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    compute_in("bfloat16")
    try:
        whole, first, second = (solo(Brief(), momentum=0.9, lr=0.1) for _ in range(3))
        assert {variable.dtype for variable in whole.model.variables} == {"bfloat16"}
        wanted = [whole.run_epoch().metrics for _ in range(2)][-1]
        first.run_epoch()
        first.save(tmp_path)
        second.load(tmp_path)
        assert second.run_epoch().metrics == pytest.approx(wanted, rel=1e-6)
    finally:
        compute_in("float32")


class MadeWhenBuilt(Brief):
    """A layer makes its sublayers when the model is built: from an `Input` in `model(hp)`, else from the data."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        class Block(keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.inner = keras.layers.Dense(8, activation="relu")
                self.inner.build(shape)

            def call(self, inputs: Any) -> Any:
                return self.inner(inputs)

        layers = [Block(), keras.layers.Dense(10)]
        return keras.Sequential([keras.layers.Input((64,)), *layers] if hp["with_input"] else layers)


@pytest.mark.parametrize("with_input", [True, False])
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", "bfloat16"), ("fp16", "float16")])
def test_layers_made_when_the_model_is_built_have_its_precision(precision: str, dtype: str, with_input: bool) -> None:
    model = solo(MadeWhenBuilt(), precision, with_input=with_input).model
    assert {layer.name: layer.compute_dtype for layer in model._flatten_layers()} == {
        layer.name: dtype for layer in model._flatten_layers()
    }


class Masked(KerasExperiment):
    """Some places of a sequence are left out by the loss, by the mask of the embedding."""

    def data(self) -> Splits:
        draw = np.random.default_rng(0)
        inputs, targets = draw.integers(0, 5, (64, 6)).astype(np.int32), draw.integers(0, 3, (64, 6))
        return Splits(inputs, targets, inputs, targets)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = [keras.layers.Embedding(20, 8, mask_zero=hp["masked"]), keras.layers.Dense(3)]
        return keras.Sequential([keras.layers.Input((6,), dtype="int32"), *layers])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return 100 * keras.losses.SparseCategoricalCrossentropy(from_logits=True)(targets, outputs)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


def test_half_precision_keeps_masks() -> None:
    wanted, found, other = (
        solo(Masked(), precision, masked=masked).evaluate()["loss"]
        for precision, masked in (("float32", True), ("bf16", True), ("bf16", False))
    )
    assert abs(found - wanted) < abs(other - wanted) / 10


class Probable(Brief):
    """Its model returns probabilities, or logits; the default loss finds the logits of the former."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras
        import tensorflow as tf

        kinds = {"logits": None, "keras": "softmax", "tensorflow": tf.nn.softmax}
        return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10, activation=kinds[hp["outputs"]])])


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`")
@pytest.mark.parametrize("outputs", ["keras", "tensorflow"])
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_probabilities_are_trained_by_their_logits(precision: str, outputs: str) -> None:
    wanted, found = (
        solo(Probable(), precision, lr=0.5, outputs=each).run_epoch().metrics for each in ("logits", outputs)
    )
    losses = ["train/loss", "validation/loss"]
    assert [found[name] for name in losses] == pytest.approx([wanted[name] for name in losses], rel=1e-6)


class Hourly(Brief):
    """Hits by the hour: a whole number over a fraction; and a mean whose weight half precision does not hold."""

    def data(self) -> Splits:
        plain = few(64, 40)
        hours = np.linspace(0.001, 0.02, 64).astype(np.float32)
        return Splits(
            plain.train_inputs, {"label": plain.train_targets, "hours": hours},
            plain.validation_inputs, {"label": plain.validation_targets, "hours": hours[:40]},
        )  # fmt: skip

    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets["label"])

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        hits = keras.ops.equal(keras.ops.argmax(outputs, -1), keras.ops.cast(targets["label"], "int32"))
        count, hours = keras.ops.sum(keras.ops.cast(hits, "int32")), keras.ops.sum(targets["hours"])
        half = keras.ops.cast(keras.ops.sum(targets["hours"]) * 0 + 1, "bfloat16")
        return {"count": Sum(count), "hourly": Mean(count, hours), "each": Mean(half, keras.ops.size(hits) + 1001)}


def test_a_weight_keeps_its_fraction_beside_a_whole_number() -> None:
    experiment = Hourly()
    found = solo(experiment, lr=0.1).evaluate()
    assert found["count"] > 0
    hours = float(np.sum(experiment.data().validation_targets["hours"], dtype=np.float64))
    assert found["hourly"] == pytest.approx(found["count"] / hours, rel=1e-6)
    assert found["each"] == pytest.approx(1 / 1041, rel=1e-9)
