from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

from raygpu.config.source import locate
from raygpu.errors import BadInput
from raygpu.experiment import Splits


def splits(count: int = 100) -> Splits:
    x = np.arange(count, dtype=np.float32)[:, None]
    return Splits.of(x, np.arange(count) % 4, validation=0.2, seed=0)


def test_split_is_stratified_seeded_and_loses_nothing() -> None:
    made = splits()
    assert made.num_train == 80
    assert np.bincount(made.validation_targets).tolist() == [5, 5, 5, 5]
    both = np.concatenate([made.train_inputs, made.validation_inputs]).ravel()
    assert sorted(both) == list(range(100))
    assert np.array_equal(splits().train_inputs, made.train_inputs)


def test_named_inputs_split_together() -> None:
    x = np.arange(40)
    made = Splits.of({"user": x, "item": x * 2}, x % 2)
    assert np.array_equal(made.train_inputs["item"], made.train_inputs["user"] * 2)


def test_part_is_stratified_seeded_and_leaves_validation_whole() -> None:
    made = splits()
    part = made.part(0.2, seed=1)
    assert part.num_train == 16
    assert np.bincount(part.train_targets).tolist() == [4, 4, 4, 4]
    assert np.array_equal(part.validation_inputs, made.validation_inputs)
    assert np.array_equal(part.train_inputs, made.part(0.2, seed=1).train_inputs)
    assert not np.array_equal(part.train_inputs, made.part(0.2, seed=2).train_inputs)
    assert made.part(1.0, seed=1) is made
    targets = made.train_inputs.ravel().astype(int) % 4
    assert np.array_equal(targets, made.train_targets), "inputs and targets stay together"


def test_test_data_is_stratified_and_apart() -> None:
    x = np.arange(100, dtype=np.float32)[:, None]
    made = Splits.of(x, np.arange(100) % 4, validation=0.2, test=0.2, seed=0)
    parts = made.train_inputs, made.validation_inputs, made.test_inputs
    assert [len(part) for part in parts] == [60, 20, 20]
    assert sorted(np.concatenate(parts).ravel()) == list(range(100))
    assert np.bincount(made.validation_targets).tolist() == np.bincount(made.test_targets).tolist() == [5, 5, 5, 5]
    assert np.array_equal(made.test_inputs.ravel() % 4, made.test_targets)
    same = Splits.of(x, np.arange(100) % 4, validation=0.2, test=0.2, seed=0)
    assert np.array_equal(made.test_inputs, same.test_inputs)


def test_without_test_data_the_split_is_as_it_was() -> None:
    from sklearn.model_selection import train_test_split

    labels = np.arange(100) % 4
    train, held = train_test_split(np.arange(100), test_size=0.3, random_state=5, stratify=labels)
    made = Splits.of(np.arange(100), labels, validation=0.3, seed=5)
    assert made.train_inputs.tolist() == train.tolist()
    assert made.validation_inputs.tolist() == held.tolist()
    assert made.test_inputs is None
    assert made.for_test() is None


def test_no_part_of_the_data_that_a_trial_may_get_has_test_data() -> None:
    x = np.arange(100, dtype=np.float32)[:, None]
    made = Splits.of(x, np.arange(100) % 4, test=0.2)
    for part in (made.first(10), made.part(1.0, seed=0), made.part(0.5, seed=0)):
        assert part.test_inputs is None
        assert part.test_targets is None
        seen = np.concatenate([part.train_inputs, part.validation_inputs])
        assert not set(seen.ravel()) & set(made.test_inputs.ravel())
    whole = made.part(1.0, seed=0)
    assert np.array_equal(whole.train_inputs, made.train_inputs)
    assert np.array_equal(whole.validation_inputs, made.validation_inputs)
    tested = made.for_test()
    assert np.array_equal(tested.validation_inputs, made.test_inputs)
    assert np.array_equal(tested.validation_targets, made.test_targets)


@pytest.mark.parametrize(
    ("validation", "test"), [(0.2, 0.8), (0.5, 0.6), (0.2, 0.0), (0.2, -0.1), (0.0, 0.2), (0.2, 1.0)]
)
def test_shares_that_leave_nothing_are_refused(validation: float, test: float) -> None:
    with pytest.raises(ValueError, match=f"test={test:g} of 50 samples leave nothing for one of the parts"):
        Splits.of(np.zeros((50, 1)), np.zeros(50), validation=validation, test=test)


@pytest.mark.parametrize(
    ("inputs", "targets", "sizes"),
    [
        (np.zeros((100, 1)), np.zeros(200), "[100, 200]"),  # the last 100 targets were left out without a word
        (np.zeros((200, 1)), np.zeros(100), "[200, 100]"),
        ({"user": np.zeros(50), "item": np.zeros(60)}, np.zeros(50), "[50, 60, 50]"),
        (np.zeros((0, 1)), np.zeros(0), "[0, 0]"),
    ],
    ids=["more targets", "fewer targets", "unequal inputs", "none"],
)
def test_arrays_of_different_lengths_are_refused_before_they_are_cut(inputs: Any, targets: Any, sizes: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"inputs and targets have {sizes} samples")):
        Splits.of(inputs, targets)


@pytest.mark.parametrize("validation", [0, 1, 20, -0.5])
def test_a_share_for_validation_is_no_number_of_samples(validation: float) -> None:
    with pytest.raises(ValueError, match=rf"validation={validation:g}; allowed: a share of the samples"):
        Splits.of(np.zeros((50, 1)), np.zeros(50), validation=validation)


def test_half_of_the_test_data_is_refused() -> None:
    x = np.zeros(3)
    with pytest.raises(ValueError, match="test_inputs and test_targets: one of both is missing"):
        Splits(x, x, x, x, test_inputs=x)
    with pytest.raises(ValueError, match="test split holds arrays of"):
        Splits(x, x, x, x, x, np.zeros(4))


def test_splits_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="train split holds arrays of"):
        Splits(np.zeros(3), np.zeros(4), np.zeros(1), np.zeros(1))


def test_masked_values_are_refused_and_not_taken_as_numbers() -> None:
    filled, masked = np.ma.masked_array(np.zeros(3)), np.ma.masked_array(np.zeros(3), mask=[False, True, False])
    Splits(filled, np.zeros(3), np.zeros(1), np.zeros(1))
    with pytest.raises(ValueError, match="train_inputs: an array with masked values"):
        Splits(masked, np.zeros(3), np.zeros(1), np.zeros(1))


def test_locate_finds_files_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "helper_of_mine.py").write_text("NAME = 'found'\n")
    (tmp_path / "mine.py").write_text("import helper_of_mine\ndef train(config): return helper_of_mine.NAME\n")
    source, code = locate("mine.py:train", tmp_path)
    assert source.kind == "function"
    assert code({}) == "found"
    assert source.resolve()({}) == "found"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:train", "no such file"),
        ("mine.py:absent", "has no 'absent'; it has: Broken, train"),
        ("mine.py:Broken", "cannot be constructed: ValueError: no luck"),
        ("mine.py:NUMBER", "neither a TorchExperiment"),
        ("mine.py", "write"),
        ("exits.py:train", "cannot be imported: SystemExit"),
        ("json.nothing:train", "no module 'json.nothing'"),
    ],
)
def test_locate_says_what_is_wrong(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "mine.py").write_text(
        "from raygpu import TorchExperiment\nNUMBER = 3\ndef train(config): ...\n"
        "class Broken(TorchExperiment):\n    def __init__(self): raise ValueError('no luck')\n"
        "    def data(self): ...\n    def model(self, hp): ...\n"
    )
    (tmp_path / "exits.py").write_text("import sys\nsys.exit('stop')\n")
    with pytest.raises(BadInput, match=message):
        locate(name, tmp_path)


def test_data_of_other_kinds_becomes_arrays() -> None:
    numbers = [[0.5, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]]
    for inputs in (numbers, torch.tensor(numbers), pandas.DataFrame(numbers, dtype="float32")):
        splits = Splits.of(inputs, [0, 1, 0, 1, 0], validation=0.4)
        assert isinstance(splits.train_inputs, np.ndarray)
        assert splits.train_inputs.dtype == np.float32
        assert splits.train_targets.dtype == np.int64
        assert len(splits.train_inputs) == 3
    named = Splits({"a": numbers}, pandas.Series([0, 1, 0, 1, 0]), {"a": numbers[:1]}, torch.tensor([1]))
    assert isinstance(named.train_inputs["a"], np.ndarray)


def test_columns_of_several_number_types_become_an_array() -> None:
    """As `pandas.get_dummies` makes them, or with missing values."""
    numbers = pandas.DataFrame({"size": [1.5, 2.0], "kind": ["x", "y"]})
    whole, parts = (pandas.array(values, kind) for values, kind in (([1, None], "Int64"), ([0.5, 2.0], "Float64")))
    for frame, kind, wanted in (
        (pandas.get_dummies(numbers), np.float64, [[1.5, 1, 0], [2, 0, 1]]),
        (pandas.get_dummies(numbers.astype({"size": "float32"})), np.float32, [[1.5, 1, 0], [2, 0, 1]]),
        (pandas.DataFrame({"a": whole, "b": parts}), np.float64, [[1, 0.5], [np.nan, 2]]),
        (pandas.DataFrame({"a": pandas.array([1, 2], "Int64"), "b": [True, False]}), np.int64, [[1, 1], [2, 0]]),
        (pandas.Series(whole), np.float64, [1, np.nan]),
    ):
        inputs = Splits(frame, [0, 1], frame, [0, 1]).train_inputs
        assert isinstance(inputs, np.ndarray)
        assert inputs.dtype == kind
        np.testing.assert_array_equal(inputs, wanted)


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ([[1.0], [1.0, 2.0]], "inputs: makes no array: .*inhomogeneous"),
        (
            pandas.DataFrame({"a": ["x", "y"], "b": [1, 2]}),
            r"inputs: a DataFrame of \(2, 2\) that holds other things than numbers: 'a' \((object|str)\)$",
        ),
        ({"a": [None, 1]}, r"inputs\['a'\]: a list of \(2,\) that holds other things than numbers"),
    ],
)
def test_data_that_makes_no_array_is_refused(inputs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Splits.of(inputs, [0, 1])
