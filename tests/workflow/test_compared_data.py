"""A run that goes on with other data than it began with says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from raygpu import dataset_splits
from raygpu.experiment import Splits
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.compared_data import NUM_BYTES, OTHER_DATA, compared_data


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
