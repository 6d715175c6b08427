"""Keras trainings on data sets whose samples are read meanwhile: the same as on arrays, in the same order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import KerasExperiment, Splits, dataset_splits
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings
from raygpu.training.data.fields import SampleError

pytest.importorskip("tensorflow")


class Vectors:
    """Vectors of eight with their classes; some cannot be read."""

    def __init__(self, count: int, seed: int, torn: int | None = None, noise: float = 0.0) -> None:
        generator = np.random.default_rng(seed)
        self.inputs = generator.standard_normal((count, 8)).astype(np.float32)
        self.classes, self.torn, self.noise = self.inputs[:, :3].argmax(1), torn, noise

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, row: int) -> Any:
        if row == self.torn:
            raise OSError("torn")
        noise = self.noise * np.random.standard_normal(8) if self.noise else 0.0
        return (self.inputs[row] + noise).astype(np.float32), int(self.classes[row])


class Named(Vectors):
    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        return {"left": inputs[:4], "right": inputs[4:]}, target


class Stream:
    """As a `tf.data.Dataset` gives its elements."""

    def __iter__(self) -> Iterator[Any]:
        import tensorflow as tf

        vectors = Vectors(96, 1)
        return iter(tf.data.Dataset.from_tensor_slices((vectors.inputs, vectors.classes)).as_numpy_iterator())


class Read(KerasExperiment):
    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1), Vectors(32, 2))

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.2),
                                 keras.layers.Dense(3)])  # fmt: skip


class ReadNamed(Read):
    def data(self) -> Splits:
        return dataset_splits(Named(96, 1), Named(32, 2))

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
        both = keras.layers.Concatenate()([left, right])
        return keras.Model({"left": left, "right": right}, keras.layers.Dense(3)(both))


class Swapped(ReadNamed):
    """Its columns have other names than the samples' fields."""

    def data(self) -> Splits:
        own = super().data()
        pairs = ((own.train_inputs, own.train_targets), (own.validation_inputs, own.validation_targets))
        return Splits(
            *(
                part
                for inputs, targets in pairs
                for part in ({"left": inputs["right"], "right": inputs["left"]}, targets)
            )
        )


class Noisy(Read):
    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1, noise=0.1), Vectors(32, 2))


class Torn(Read):
    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1, torn=77), Vectors(32, 2))


class Streamed(Read):
    def data(self) -> Splits:
        return dataset_splits(Stream(), Vectors(32, 2), num_samples={"train": 96})


def solo(kind: type[Read], splits: Splits | None = None) -> Any:
    from raygpu.training.keras.solo import KerasSolo

    experiment = kind()
    trial = Trial("t0000", 0, {"lr": 0.1, "batch_size": 20})
    return KerasSolo(experiment, splits or experiment.data(), trial, Settings(3, 1, "float32", Path()))


def trained(training: Any) -> list[EpochResult]:
    results = list(iter(training.run_epoch, None))
    training.close()
    return results


def arrays(part: Any) -> Any:
    """All samples of data that is read."""
    return {name: np.asarray(each) for name, each in part.items()} if isinstance(part, dict) else np.asarray(part)


@pytest.mark.parametrize("kind", [Read, ReadNamed, Swapped])
def test_what_is_read_trains_as_arrays_do(kind: type[Read], monkeypatch: pytest.MonkeyPatch) -> None:
    splits = kind().data()
    read = trained(solo(kind, splits))
    in_memory = Splits(*map(arrays, (splits.train_inputs, splits.train_targets,
                                     splits.validation_inputs, splits.validation_targets)))  # fmt: skip
    monkeypatch.setattr("raygpu.training.data.columns.ORDER_SEED", 0)  # as the trial's own seed
    assert [each.metrics for each in read] == [each.metrics for each in trained(solo(kind, in_memory))]
    assert all(each.waited_s is not None and each.waited_s > 0 for each in read)


def test_random_numbers_of_a_sample_depend_on_its_epoch_alone(tmp_path: Path) -> None:
    whole = trained(solo(Noisy))
    first, again = solo(Noisy), solo(Noisy)
    first.run_epoch()
    first.save(tmp_path)
    first.close()
    again.load(tmp_path)
    assert [each.metrics for each in trained(again)] == [each.metrics for each in whole[1:]]
    assert [each.metrics for each in whole] != [each.metrics for each in trained(solo(Read))]


def test_a_stream_comes_in_its_own_order() -> None:
    results = trained(solo(Streamed))
    assert results[-1].metrics["train/loss"] < results[0].metrics["train/loss"]
    assert results[-1].num_samples == 96


def test_a_sample_that_cannot_be_read_is_named() -> None:
    training = solo(Torn)
    with pytest.raises(SampleError, match=r"^sample 77 of the train data cannot be read: OSError: torn$"):
        training.run_epoch()
    training.close()


def test_steps_that_are_timed_begin_anew() -> None:
    training = solo(Noisy)
    steps = training.trial_steps()
    assert next(steps) == 20
    next(steps)
    assert training.trial_evaluation() == (32, 32)
    training.close()
