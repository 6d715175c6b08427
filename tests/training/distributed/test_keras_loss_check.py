"""What differs where a Keras batch is taken in parts is told, or refused, before it is trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Mean, Splits, dataset_splits
from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.training.distributed.batch_split import checked, spread
from raygpu.training.distributed.micro_batch_check import inexact_metrics
from raygpu.training.distributed.ranks import ParallelSettings
from tests.ranks import on_keras_ranks
from tests.small_data import few
from tests.training.distributed.test_keras_ranks import Drawing, Mlp, training


class Plain(KerasExperiment):
    """With a regularizer, dropout and noise, which parts of a batch have as well."""

    def data(self) -> Splits:
        return few(100)

    def layers(self, keras: Any) -> list[Any]:
        return [keras.layers.Dense(8, kernel_regularizer="l2"), keras.layers.Dropout(0.3)]

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((64,)), *self.layers(keras), keras.layers.Dense(10)])

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs))


class Mixed(Plain):
    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import keras

        return 0.7 * inputs + 0.3 * keras.ops.roll(inputs, 1, axis=0)


class Counting(Plain):
    def layers(self, keras: Any) -> list[Any]:
        class Counter(keras.layers.Layer):  # type: ignore[misc]
            def build(self, shape: Any) -> None:
                self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

            def call(self, inputs: Any, training: bool = False) -> Any:
                if training:
                    self.count.assign_add(1.0)
                return inputs / (1.0 + 0.1 * self.count)

        return [Counter(name="counter"), keras.layers.BatchNormalization()]


def calling(call: Callable[[Any, Any, bool], Any]) -> Callable[[Plain, Any], list[Any]]:
    """Layers of which one calls a function of Keras, the inputs, and whether it trains."""

    def layers(self: Plain, keras: Any) -> list[Any]:
        class Calls(keras.layers.Layer):  # type: ignore[misc]
            def call(self, inputs: Any, training: bool = False) -> Any:
                return call(keras, inputs, training)

        return [keras.layers.Dense(8), keras.layers.BatchNormalization(), Calls(), keras.layers.Dropout(0.3)]

    return layers


def centred(keras: Any, inputs: Any, training: bool) -> Any:
    return inputs - keras.ops.mean(inputs, axis=0) if training else inputs


def centred_with_noise(keras: Any, inputs: Any, training: bool) -> Any:
    return keras.random.dropout(centred(keras, inputs, training), 0.2) if training else inputs


def noise(keras: Any, inputs: Any, training: bool) -> Any:
    return inputs + keras.random.normal(keras.ops.shape(inputs)) if training else inputs


def unit_gradient(keras: Any, inputs: Any, training: bool) -> Any:
    import tensorflow as tf

    function = tf.custom_gradient(lambda values: (tf.identity(values), lambda given: given / tf.norm(given)))
    return function(inputs)


class Centred(Plain):
    layers = calling(centred)


class CentredWithNoise(Plain):
    layers = calling(centred_with_noise)


class Noisy(Plain):
    layers = calling(noise)


class UnitGradient(Plain):
    layers = calling(unit_gradient)


def adding(function: Callable[[Any, Any], Any]) -> Callable[[Plain, Any], list[Any]]:
    """Layers of which one adds to the loss."""

    def layers(self: Plain, keras: Any) -> list[Any]:
        class Adds(keras.layers.Layer):  # type: ignore[misc]
            def call(self, inputs: Any) -> Any:
                self.add_loss(0.01 * function(keras, keras.ops.square(inputs)))
                return inputs

        return [Adds()]

    return layers


class AddedMean(Plain):
    layers = adding(lambda keras, squares: keras.ops.mean(squares))


class Exact(Plain):
    """All that parts of a batch have as the whole one: what Plain has, an added mean, and noise."""

    def layers(self, keras: Any) -> list[Any]:
        return [layer for kind in (Plain, AddedMean, Noisy) for layer in kind.layers(self, keras)]


class AddedSum(Plain):
    layers = adding(lambda keras, squares: keras.ops.sum(squares))


class Hard(Plain):
    """The mean over samples with a large loss: over all, until some of them are learned."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import tensorflow as tf

        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)
        hard = tf.cast(losses > 0.5, losses.dtype)
        return self.mean(tf.reduce_sum(losses * hard), tf.reduce_sum(hard))

    def mean(self, total: Any, count: Any) -> Any:
        return total / count


class HardAsMean(Hard):
    def mean(self, total: Any, count: Any) -> Any:
        return Mean(total, count)


class Padded(KerasExperiment):
    """Samples of unequal lengths, filled up by zeros over which the model takes the mean."""

    def data(self) -> Splits:
        return dataset_splits(Lengths(), validation=0.2, collate_fn=padded)

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        return keras.Sequential([layers.Input((None, 4)), layers.GlobalAveragePooling1D(), layers.Dense(3)])


class Lengths:
    def __len__(self) -> int:
        return 96

    def __getitem__(self, row: int) -> Any:
        return np.random.default_rng(row).normal(size=(2 + row % 7, 4)).astype(np.float32), row % 3


def padded(samples: list[Any]) -> Any:
    longest = max(len(values) for values, _ in samples)
    filled = [np.pad(values, ((0, longest - len(values)), (0, 0))) for values, _ in samples]
    return np.stack(filled), np.array([target for _, target in samples])


def lines(code: Any, **values: Any) -> tuple[str, ...]:
    pytest.importorskip("tensorflow")
    config = TrainConfig(experiment="a:B", hyperparameters={"batch_size": 20}, epochs=1, metric="accuracy", **values)
    splits, devices = code.data(), 1 if "accumulate" in values else 2
    plan = spread(config, devices, splits.samples_per_epoch)
    return checked(config, plan, devices, Source("keras", "a:B", str(Path.cwd())), code, splits).lines[1:]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Mixed(), "augment() makes a sample of others of its batch too"),
        (Counting(), "counter/count): each part of a batch changes them by itself"),
        (Centred(), "the gradient of a batch is not the mean of those of its parts"),
        (CentredWithNoise(), "a layer that looks at the whole batch while it trains"),
        (UnitGradient(), "a gradient by tf.custom_gradient"),
        (Padded(), "collate_fn makes a sample of others of its batch too, or fills it up"),
    ],
)
@pytest.mark.parametrize(
    "values", [{}, pytest.param({"accumulate": 2}, marks=pytest.mark.slow)], ids=["devices", "parts"]
)
def test_what_parts_change_is_told(code: Any, words: str, values: dict[str, Any]) -> None:
    (line,) = lines(code, **values)
    assert words in line


def test_what_parts_of_one_device_change_is_told() -> None:
    for code, words in ((Centred(), "the gradient of a batch is not the mean"), (Padded(), "or fills it up")):
        (line,) = lines(code, accumulate=2)
        assert words in line


@pytest.mark.parametrize("code", [Exact(), HardAsMean()])
def test_what_parts_do_not_change_is_not(code: Any) -> None:
    assert lines(code) == ()


def test_a_loss_by_share_has_gradients_of_shares() -> None:
    assert lines(Centred(), loss_by_share=True)[0].startswith("loss by share: ")


def test_a_sum_that_a_layer_adds_to_the_loss_is_refused() -> None:
    with pytest.raises(BadInput, match=r"what add_loss\(\) adds to the loss is no mean over samples: .* but "):
        lines(AddedSum())


def test_a_mean_over_hard_samples_is_refused() -> None:
    with pytest.raises(BadInput, match=r"no mean over samples: .*, once the model fits some of them"):
        lines(Hard())


def notes(ranks: Any) -> list[list[str]]:
    return [training(ranks, ParallelSettings(20, parts), kind).notes for kind in (Drawing, Mlp) for parts in (1, 2)]


def test_normalised_parts_of_a_batch_are_told() -> None:
    """On two devices of a process."""
    (devices,), (parts,), *others = on_keras_ranks(1, notes, local=2)[0]
    assert devices.startswith("BatchNormalization: each device normalises its share by itself; synchronized=True")
    assert parts == "BatchNormalization: each part of a batch is normalised by itself"
    assert others == [[], []]


class Unseen(Plain):
    """Scores of one digit, which the untrained model predicts for none."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        minus_nine = keras.initializers.Constant(-9)
        return keras.Sequential([keras.Input((64,)), keras.layers.Dense(1, bias_initializer=minus_nine)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.losses.binary_crossentropy(targets == 3, outputs[:, 0], from_logits=True)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        found, wanted = (keras.ops.cast(each, "float32") for each in (outputs[:, 0] > 0, targets == 3))
        f1 = 2 * keras.ops.sum(found * wanted) / keras.ops.maximum(keras.ops.sum(found + wanted), 1)
        return {"f1": f1, "found": keras.ops.mean(found)}


def test_a_metric_is_told_where_the_untrained_model_hides_it() -> None:
    rows = np.arange(1200) % 100
    inputs, targets = (np.asarray(each)[rows] for each in (few(100).train_inputs, few(100).train_targets))
    source = Source("keras", "here:Unseen", str(Path.cwd()))
    [line] = inexact_metrics(source, Unseen(), {}, Splits(inputs, targets, inputs, targets))
    assert line.startswith("validation/f1, of 1,200 samples, is the mean of batches of 1,024")
    assert "tried with random numbers for outputs: " in line or "once the model fits some of them" in line
