"""Keras losses that are no means over samples, as means in two parts and as sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.experiment import Mean, Splits, Sum
from tests.ranks import compute_in
from tests.small_data import few
from tests.training.distributed.test_keras_ranks import Mlp


class Masked(Mlp):
    """Some shares of a batch have no valid target at all. The model has a penalty of its weights."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        mask = keras.ops.cast(keras.ops.equal(targets, 3), losses.dtype)
        return Mean(keras.ops.sum(losses * mask), keras.ops.sum(mask))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        import keras

        hits = keras.ops.cast(keras.ops.equal(keras.ops.argmax(outputs, -1), keras.ops.cast(targets, "int64")), "int32")
        mask = keras.ops.cast(keras.ops.equal(targets, 3), "int32")
        return {"recall": Mean(keras.ops.sum(hits * mask), keras.ops.sum(mask)), "hits": Sum(keras.ops.sum(hits))}


class Large(Masked):
    """Its numerator, times the loss scale, overflows in half precision; the mean does not."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        mean = super().loss(outputs, targets)
        return Mean(mean.total * 1e6, mean.weight * 1e6)


class MaskedTwoDtypes(Masked):
    """Its last layer is float64 in any case."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        *layers, _ = super().model(hp).layers
        return keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10, dtype="float64")])


class TwoDtypes(MaskedTwoDtypes):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return Mlp.loss(self, outputs, targets)


class Added(Mlp):
    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        return Sum(keras.ops.sum(losses) / 50)


class Dice(Mlp):
    """Its denominator depends on the model too."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        shares = keras.ops.softmax(outputs)
        wanted = keras.ops.cast(keras.ops.one_hot(targets, 10), shares.dtype)
        below = keras.ops.sum(shares**2) + keras.ops.sum(wanted)
        return Mean(below - 2 * keras.ops.sum(shares * wanted), below)


def data() -> Splits:
    return few(167, 64)


def results(
    ranks: Any, parallel: Any, dtype: str = "float64", kinds: Sequence[type[Mlp]] = (Masked, Added, Dice)
) -> dict[str, tuple[np.ndarray, dict[str, float]]]:
    """By loss: the parameters after two epochs, and the last metrics. parallel: None for a trial's loop."""
    from raygpu.search.trials import Trial
    from raygpu.training.keras.solo import KerasSolo
    from tests.training.distributed import test_keras_ranks as base

    compute_in(dtype)
    found = {}
    for kind in kinds:
        if parallel is None:
            own: Any = KerasSolo(kind(), data(), Trial("t0000", 3, base.HP), base.SETTINGS)
            results = [own.run_epoch() for _ in range(2)]
            model, metrics = own.model, results[-1].metrics
        else:
            own, metrics = base.training(ranks, parallel, kind), {}
            while (progress := own.advance()) is not None:
                metrics = progress.result.metrics if progress.result else metrics
            model = own.solo.model
        weights = np.concatenate([variable.numpy().ravel() for variable in model.trainable_variables])
        found[kind.__name__] = weights, dict(metrics)
    return found


def results_in_float32(ranks: Any, parallel: Any) -> dict[str, tuple[np.ndarray, dict[str, float]]]:
    """As `results`, where numerator and denominator have another dtype than the gradients."""
    return results(ranks, parallel, "float32", (Masked, Dice, TwoDtypes, MaskedTwoDtypes))


def results_in_float32_on_one(ranks: Any, parallel: Any) -> dict[str, tuple[np.ndarray, dict[str, float]]]:
    """As `results_in_float32`, on the first device of a process that has several."""
    return _on_one(results_in_float32, parallel)


def results_on_one(ranks: Any, parallel: Any) -> dict[str, tuple[np.ndarray, dict[str, float]]]:
    """As `results`, on the first device of a process that has several."""
    return _on_one(results, parallel)


def _on_one(function: Callable[..., Any], parallel: Any) -> Any:
    from raygpu.training.distributed.keras_devices import KerasRanks
    from tests.training.distributed.test_keras_ranks import SETTINGS

    return function(KerasRanks(1, 1, SETTINGS), parallel)


def means_in_fp16(ranks: Any) -> list[tuple[np.ndarray, float]]:
    """The parameters after two epochs and the loss scale: of a trial, and of a training on one device."""
    from raygpu.search.trials import Trial
    from raygpu.training.base import Settings
    from raygpu.training.distributed.keras_devices import KerasRanks
    from raygpu.training.distributed.keras_ranks import KerasParallel
    from raygpu.training.distributed.ranks import ParallelSettings
    from raygpu.training.keras.solo import KerasSolo
    from tests.training.distributed import test_keras_ranks as base

    trial, settings = Trial("t0000", 3, base.HP), Settings(2, 1, "fp16", Path())
    solo = KerasSolo(Large(), data(), trial, settings)
    while solo.run_epoch() is not None:
        pass
    own = KerasParallel(Large(), data(), trial, settings, ParallelSettings(50), KerasRanks(1, 1, settings))
    while own.advance() is not None:
        pass
    return [
        (
            np.concatenate([variable.numpy().ravel() for variable in each.model.trainable_variables]),
            float(each.optimizer.dynamic_scale.numpy()),
        )
        for each in (solo, own.solo)
    ]
