"""Weights that a forward pass in training changes: each step begins with the first device's, and a resume is exact."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu.training.distributed.ranks import ParallelSettings
from tests.ranks import on_keras_ranks
from tests.training.distributed.test_keras_ranks import Mlp, parameters, training

PARALLEL = ParallelSettings(20, ratios=(3.0, 2.0))


class Centred(Mlp):
    """A moving centre is a part of the outputs, beside BatchNormalization and a frozen layer."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        class Centre(keras.layers.Layer):  # type: ignore[misc]
            def build(self, shape: Any) -> None:
                add = self.add_weight
                self.centre = add(name="centre", shape=(shape[-1],), initializer="zeros", trainable=False)
                self.count = add(name="count", shape=(), initializer="zeros", dtype="int32", trainable=False)
                self.has_begun = add(name="has_begun", shape=(), initializer="zeros", dtype="bool", trainable=False)

            def call(self, inputs: Any, training: bool = False) -> Any:
                if training:
                    self.centre.assign(0.9 * self.centre + 0.1 * keras.ops.mean(inputs, 0))
                    self.count.assign_add(1)
                    self.has_begun.assign(True)
                return inputs - self.centre

        layers = keras.layers
        inner = [layers.Dense(16), layers.BatchNormalization(), layers.Dense(8, trainable=False), Centre()]
        return keras.Sequential([layers.Input((64,)), *inner, layers.Dense(10)])


def shared(ranks: Any) -> Any:
    """The moving weights, and their values on each device of this process after three steps and at the fourth."""
    own = training(ranks, PARALLEL, Centred)
    assert own._moving is not None
    weights, values = own._moving.weights, []
    own.take_steps(3)
    for _ in range(2):
        values += [[np.asarray(own._strategy.experimental_local_results(weight.value)) for weight in weights]]
        own._moving.begin_step()
    return [weight.name for weight in weights], *values


@pytest.mark.parametrize(("processes", "local"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_each_step_begins_with_the_first_device_s(processes: int, local: int) -> None:
    names, before, after = zip(*on_keras_ranks(processes, shared, local=local), strict=True)
    assert list(names) == [["centre", "count", "has_begun"]] * processes
    old, new = ([np.concatenate(each) for each in zip(*values, strict=True)] for values in (before, after))
    assert not np.array_equal(old[0][0], old[0][1]), "of each device's own share of a batch"
    for own, alike in zip(old, new, strict=True):
        assert np.array_equal(alike, [own[0], own[0]])
    assert new[1].tolist() == [3, 3]


def saved_and_gone_on(ranks: Any, folder: str) -> Any:
    whole, first, again = (training(ranks, PARALLEL, Centred, request=request) for request in ("", "checkpoint", ""))
    first.advance()  # ends within the first epoch
    assert first.step > 0
    first.save(Path(folder))
    ranks.gather([None] * ranks.local)
    again.load(Path(folder))
    for each in (whole, again):
        while each.advance() is not None:
            pass
    return parameters(whole), parameters(again)


@pytest.mark.parametrize(("processes", "local"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_a_training_that_goes_on_is_the_same_to_the_last_bit(tmp_path: Path, processes: int, local: int) -> None:
    for whole, again in on_keras_ranks(processes, saved_and_gone_on, str(tmp_path), local=local):
        assert np.array_equal(again, whole)
