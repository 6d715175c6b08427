"""A run that goes on with other data than it began with says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raygpu import dataset_splits
from raygpu.experiment import Splits
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.compared_data import FEW, NUM_BYTES, OTHER_DATA, compared_data, validation_digest


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory.create(tmp_path, "train")
    folder.write_run({"kind": "train"})
    return folder


def splits(seed: int = 0, samples: int = 100, width: int = 4) -> Splits:
    x = np.random.default_rng(seed).normal(size=(samples, width)).astype(np.float32)
    return Splits.of(x, (x[:, 0] > 0).astype(np.int64), validation=0.2, test=0.2)


def told(parts: str) -> list[str]:
    return [OTHER_DATA.format(parts=parts, kind="training")]


def test_each_part_is_compared_with_that_of_the_start(folder: RunDirectory) -> None:
    whole = splits()
    test = whole.for_test()
    assert compared_data(folder, None, None) == []
    for _ in range(2):
        assert compared_data(folder, splits(), test) == []
    last = whole.train_inputs.copy()  # type: ignore[union-attr]
    last[-1, 0] += 1
    assert compared_data(folder, replace(whole, train_inputs=last), test) == told("training")
    assert compared_data(folder, splits(1), test) == told("training and validation")
    assert compared_data(folder, splits(0, 101), test) == told("training and validation")
    assert compared_data(folder, whole, None) == told("test")
    assert compared_data(folder, splits(1), None) == told("training, validation and test")
    assert compared_data(folder, whole, test) == [], "what it began with stays noted"


def test_of_a_large_array_samples_at_equal_distances_are_compared(folder: RunDirectory) -> None:
    many = splits(samples=200, width=NUM_BYTES // 200)
    assert compared_data(folder, many, None) == []
    assert compared_data(folder, replace(many, train_inputs=-many.train_inputs), None) == told("training")  # type: ignore[operator]


def test_training_samples_of_a_data_set_are_counted_alone(folder: RunDirectory) -> None:
    def of(size: int) -> Splits:
        rng = np.random.default_rng()
        training = [(rng.normal(size=2).astype(np.float32), 0) for _ in range(size)]
        return dataset_splits(training, [(np.ones(2, np.float32), 1)] * 8)

    assert compared_data(folder, of(20), None) == compared_data(folder, of(20), None) == []
    assert compared_data(folder, of(21), None) == told("training")


class Files:
    """A data set that lists its targets, or does not, and counts what is read of it."""

    def __init__(self, targets: list[int], *, is_listed: bool = True, other: int | None = None) -> None:
        self.classes, self.other, self.read = targets, other, set[int]()
        if is_listed:
            self.targets = targets

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        self.read.add(row)
        return np.full(2, row if row != self.other else -1.0, np.float32), self.classes[row]


def digest(validation: Files) -> str:
    return validation_digest(dataset_splits(Files([0, 1] * 4), validation))


CLASSES = [0] * 50 + [1] * 50


@pytest.mark.parametrize("is_listed", [True, False])
def test_scores_over_more_validation_samples_of_a_data_set_are_not_compared(is_listed: bool) -> None:
    whole = digest(Files(CLASSES, is_listed=is_listed))
    assert whole == digest(Files(CLASSES, is_listed=is_listed))
    assert whole.startswith("100 ")
    for others in ([*CLASSES, 1], [*CLASSES, 2, 2], CLASSES[:-1]):
        assert digest(Files(others, is_listed=is_listed)) != whole
    assert digest(Files(CLASSES, is_listed=is_listed, other=99)) != whole, "the samples are not the first ones alone"


def test_a_listed_target_of_a_data_set_is_compared_wherever_it_is(folder: RunDirectory) -> None:
    relabelled = [*CLASSES[:49], 1, *CLASSES[50:]]
    assert digest(Files(CLASSES)) != digest(Files(relabelled))
    validation = Files(CLASSES)
    assert compared_data(folder, dataset_splits(Files(CLASSES), validation), None) == []
    assert compared_data(folder, dataset_splits(Files(relabelled), Files(relabelled)), None) == told(
        "training and validation"
    )


def test_validation_arrays_are_compared_by_all_targets_and_by_inputs_of_the_whole_length() -> None:
    whole = splits()
    first = validation_digest(whole)
    assert first == validation_digest(splits())
    for name in ("validation_inputs", "validation_targets"):
        other = getattr(whole, name).copy()
        other[-1] += 1
        assert validation_digest(replace(whole, **{name: other})) != first


def test_of_a_stream_the_first_validation_samples_are_compared() -> None:
    """A later one costs all before it."""
    from torch.utils.data import IterableDataset

    read = list[int]()

    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
            for row in range(1000):
                read.append(row)
                yield np.full(2, row, np.float32), 0

    data = dataset_splits(Stream(), Stream(), num_samples={"train": 1000, "validation": 1000})
    read.clear()
    assert validation_digest(data).startswith("1000 ")
    assert max(read, default=0) <= FEW
