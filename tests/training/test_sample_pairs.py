"""Scores of pairs are told from scores of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.training.sample_pairs import broadcast_shapes, common_shape, over_pairs, varied_rows

Score = Callable[[np.ndarray, np.ndarray], float]


def is_over_pairs(score: Score, outputs: np.ndarray, targets: np.ndarray) -> bool:
    found = over_pairs(
        lambda rows: {"score": score(outputs[list(rows)], targets[list(rows)])},
        lambda row, column: {"score": score(outputs[[row]], targets[[column]])},
        len(outputs),
    )
    return bool(found)


def accuracy(outputs: Any, targets: Any) -> float:
    return float(np.mean(outputs == targets))


def f1(outputs: Any, targets: Any) -> float:
    return float(2 * np.sum(outputs * targets) / max(np.sum(outputs + targets), 1))


def largest_error(outputs: Any, targets: Any) -> float:
    return float(np.max(np.abs(outputs - targets)))


def rmse(outputs: Any, targets: Any) -> float:
    return float(np.sqrt(np.mean((outputs - targets) ** 2)))


labels = st.lists(st.integers(0, 1), min_size=4, max_size=4).map(np.array)
numbers = st.lists(st.integers(-3, 3), min_size=4, max_size=4).map(np.array)


@given(outputs=labels, targets=labels, score=st.sampled_from([accuracy, f1, largest_error]))
def test_right_metrics_of_labels_are_not_taken_for_those_of_pairs(outputs: Any, targets: Any, score: Score) -> None:
    assert not is_over_pairs(score, outputs, targets)


@given(outputs=numbers, targets=numbers, score=st.sampled_from([rmse, accuracy, largest_error]))
def test_right_metrics_of_numbers_are_not_taken_for_those_of_pairs(outputs: Any, targets: Any, score: Score) -> None:
    assert not is_over_pairs(score, outputs, targets)


@pytest.mark.parametrize("score", [accuracy, rmse, lambda o, t: float(np.sum(np.abs(o - t)))])
def test_broadcast_scores_are_found(score: Score) -> None:
    outputs, targets = np.array([0.5, 1.0, 2.0, 4.0]), np.array([1.0, 3.0, 5.0, 4.0])
    assert is_over_pairs(lambda o, t: score(o[:, None], t), outputs, targets)
    assert not is_over_pairs(score, outputs, targets)


def test_the_samples_that_are_looked_at_have_different_targets() -> None:
    rare = np.array([0, 0, 0, 0, 0, 1, 0, 0])
    assert varied_rows([np.zeros(8)]) == [0, 2, 4, 7]
    assert 5 in varied_rows([rare])
    assert varied_rows([np.arange(8.0)[:, None]]) == [0, 1, 2, 3]
    assert {5, 6} <= set(varied_rows([rare, np.array([0, 0, 0, 0, 0, 0, 2, 0])]))
    assert varied_rows([rare[:3]]) == [0, 1, 2]


def test_shapes_that_broadcasting_may_compare() -> None:
    assert broadcast_shapes([(8, 1)], [(8,)]) == ((8, 1), (8,))
    assert broadcast_shapes([(8, 1)], [(8, 1)]) == ((8, 1), (8, 1)), "an index may take the 1 away"
    assert broadcast_shapes([(8, 3), (8, 1)], [(8, 3), (8,)]) == ((8, 1), (8,))
    assert broadcast_shapes([(8, 10)], [(8,)]) == ((8, 10), (8,)), "a column of the output has one number a sample"
    assert broadcast_shapes([(8, 10)], [(8, 1)]) == ((8, 10), (8, 1))
    assert broadcast_shapes([(8, 3, 1)], [(8, 3)]) == ((8, 3, 1), (8, 3))
    assert broadcast_shapes([(8, 4)], [(8, 4)]) is None
    assert broadcast_shapes([(8, 4)], [(8, 3)]) is None
    assert broadcast_shapes([(9, 1), ()], [(8,), ()]) is None


def test_the_shape_that_is_advised() -> None:
    assert common_shape((8, 1), (8,), "o") == "o.shape"
    assert common_shape((8, 2), (8,), "o") == "(-1, 1)"
    assert common_shape((8, 2), (8, 1), "o") == "(-1,)"
