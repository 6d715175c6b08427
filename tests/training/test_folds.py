from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.folds import Folds, require_fold, splits_of


def numbered(count: int, classes: int = 2, *, test: int = 0) -> Splits:
    """Splits whose only input is the sample's own number."""
    numbers = np.arange(count + test, dtype=np.float32)[:, None]
    labels = np.arange(count + test) % classes
    cut = count - max(1, count // 4)
    tested = (numbers[count:], labels[count:]) if test else (None, None)
    return Splits(numbers[:cut], labels[:cut], numbers[cut:count], labels[cut:count], *tested)


def ids(arrays: Any) -> list[int]:
    return [int(number) for number in np.asarray(arrays).ravel()]


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(12, 90),
    num_folds=st.integers(2, 6),
    seed=st.integers(0, 2**32 - 1),
    fraction=st.sampled_from([1.0, 0.5, 0.2]),
    classes=st.sampled_from([1, 2]),
)
def test_no_sample_of_a_fold_is_trained_on_and_each_one_validates_once(
    count: int, num_folds: int, seed: int, fraction: float, classes: int
) -> None:
    folds = Folds.of(numbered(count, classes, test=5), num_folds, seed, fraction)
    validated: Counter[int] = Counter()
    for fold in range(num_folds):
        part = folds.split(fold)
        trained, held = ids(part.train_inputs), ids(part.validation_inputs)
        assert not set(trained) & set(held)
        assert len(set(trained)) == len(trained) == folds.num_train(fold)
        if fraction == 1.0:
            assert set(trained) | set(held) == set(range(count)), "pooled, without the test data"
        else:
            assert len(trained) == max(1, round(fraction * (count - len(held))))
        assert ids(np.asarray(folds.inputs)[folds.train_rows(fold)]) == trained
        assert np.array_equal(np.asarray(trained) % classes, part.train_targets), "inputs and targets stay together"
        validated.update(held)
    assert validated == Counter(range(count))
    sizes = [folds.num_validation(fold) for fold in range(num_folds)]
    assert max(sizes) - min(sizes) <= 1


def test_folds_are_stratified_and_seeded() -> None:
    labels = np.repeat([0, 1, 2], [60, 30, 10])
    splits = Splits.of(np.arange(100, dtype=np.float32), labels, validation=0.2)
    folds = Folds.of(splits, 5, seed=3)
    for fold in range(5):
        assert np.bincount(folds.validation(fold)[1]).tolist() == [12, 6, 2]
    assert np.array_equal(folds.inputs, Folds.of(splits, 5, seed=3).inputs)
    assert not np.array_equal(folds.inputs, Folds.of(splits, 5, seed=4).inputs)
    part = Folds.of(splits, 5, seed=3, fraction=0.5)
    assert np.bincount(part.split(1).train_targets).tolist() == [24, 12, 4]


def test_targets_that_are_no_classes_are_cut_at_random() -> None:
    x = np.arange(10, dtype=np.float32)
    folds = Folds.of(Splits(x[:8], x[:8], x[8:], x[8:]), 3, seed=0)
    assert sorted(folds.num_validation(fold) for fold in range(3)) == [3, 3, 4]


def test_validation_data_is_no_copy_and_named_arrays_stay_together() -> None:
    x = np.arange(40, dtype=np.float32)
    named = Splits.of({"user": x, "item": 2 * x}, {"stars": x, "clicks": 3 * x}, validation=0.25)
    folds = Folds.of(named, 4, seed=0)
    for fold in range(4):
        part, (inputs, targets) = folds.split(fold), folds.validation(fold)
        for pair in ((part.train_inputs, part.train_targets), (inputs, targets)):
            assert np.array_equal(pair[0]["item"], 2 * pair[0]["user"])
            assert np.array_equal(pair[1]["clicks"], 3 * pair[0]["user"])
        assert inputs["user"].base is not None
        assert np.shares_memory(inputs["user"], folds.inputs["user"])
    assert np.shares_memory(folds.split(0).train_inputs["user"], folds.inputs["user"]), "of the first fold a slice"


def test_the_pool_is_sent_once() -> None:
    x = np.zeros((1000, 50), np.float32)
    folds = Folds.of(Splits(x[:800], x[:800, 0], x[800:], x[800:, 0]), 10, seed=0)
    assert len(pickle.dumps(folds)) < 1.1 * (x.nbytes + x[:, 0].nbytes)


@pytest.mark.parametrize(
    ("labels", "num_folds", "message"),
    [
        (np.repeat([0, 7], [20, 3]), 5, "5 folds need 5 samples of each class, and class 7 has 3 of 23 training and"),
        (np.zeros(6, np.int64), 7, "7 folds of 6 training and validation samples; each needs at least one"),
        (np.zeros(6, np.float32), 7, "7 folds of 6 training and validation samples"),
    ],
)
def test_too_few_samples_are_refused_in_one_line(labels: np.ndarray, num_folds: int, message: str) -> None:
    x = np.zeros((len(labels), 1), np.float32)
    with pytest.raises(ValueError, match=message) as fault:
        Folds.of(Splits(x[:-2], labels[:-2], x[-2:], labels[-2:]), num_folds, seed=0)
    assert "\n" not in str(fault.value)


def test_a_trial_and_its_data_have_to_agree_on_folds() -> None:
    splits = numbered(20)
    folds = Folds.of(splits, 4, seed=0)
    trial = Trial("t0000-3", 0, {}, repeat=0, fold=2)
    assert ids(splits_of(folds, trial).validation_inputs) == ids(folds.validation(2)[0])
    assert splits_of(splits, Trial("t0000", 0, {})) is splits
    with pytest.raises(ValueError, match="trial t0000-3 is of fold 2, and the data is not cut into folds"):
        require_fold(splits, [trial])
    with pytest.raises(ValueError, match="trial t0001 is of no fold, and the data is cut into 4 folds"):
        require_fold(folds, [trial, Trial("t0001", 0, {})])
