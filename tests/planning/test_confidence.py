"""Confidence intervals of repeated measurements: what they hold, and what they do not claim."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.planning.confidence import Interval, interval, ratio

positive = st.floats(1e-3, 1e6)


@given(st.lists(positive, min_size=2, max_size=30), st.floats(1e-3, 1e3))
def test_the_median_lies_within_and_units_do_not_matter(values: list[float], unit: float) -> None:
    found = interval(values)
    assert found.low <= found.middle <= found.high
    scaled = interval([unit * value for value in values])
    assert scaled.middle == pytest.approx(unit * found.middle)
    if math.isfinite(scaled.width) and found.low > 1e-200:
        assert scaled.low == pytest.approx(unit * found.low)


@given(st.lists(positive, min_size=1, max_size=20))
def test_equal_measurements_have_no_spread_and_one_has_no_known_one(values: list[float]) -> None:
    same = ratio(values, values)
    assert same.middle == pytest.approx(1)
    assert not same.excludes(1.0)
    assert (same.width == pytest.approx(1)) == (len(values) > 1)


@pytest.mark.parametrize("count", [3, 5, 6, 9, 12])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_truth_is_missed_in_few_cases_under_heavy_tails(count: int, seed: int) -> None:
    """Student's t with 1.5 degrees of freedom: its variance is infinite, as the noise of a busy machine nearly is."""
    logs = 0.2 * np.random.default_rng(seed).standard_t(1.5, size=(200, count))
    missed = sum(interval([*np.exp(np.clip(row, -300, 300))]).excludes(1.0) for row in logs)
    assert missed <= 24, "5 % of 200 are ten; more than 24 happen once in 20,000 times"


def test_order_statistics_leave_outliers_out() -> None:
    found = interval([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.2, 30.0])
    assert (found.low, found.high) == (pytest.approx(0.98), pytest.approx(1.02))


def test_known_intervals() -> None:
    three = interval([math.e, math.e**2, math.e**3])
    assert math.log(three.high) == pytest.approx(2 + 4.302653 / math.sqrt(3))
    six = interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (six.low, six.high) == (pytest.approx(1.0), pytest.approx(6.0)), "the whole range: 96.9 %"
    assert six.middle == pytest.approx(math.sqrt(12))


def test_a_ratio_of_independent_measurements() -> None:
    found = Interval(4.0, 2.0, 8.0).over(Interval(1.0, 1.0, 1.0))
    assert (found.middle, found.low, found.high) == (pytest.approx(4), pytest.approx(2), pytest.approx(8))
    assert not Interval(4.0, 2.0, 8.0).over(interval([2.0])).excludes(1000.0)
    assert str(Interval(16.91, 15.14, 18.2)) == "16.9 (15.1 to 18.2)"
    assert str(interval([16.91])) == "16.9 (spread not known)"


def test_no_interval_of_nothing() -> None:
    for values in ([], [1.0, 0.0], [1.0, -2.0], [math.inf]):
        with pytest.raises(ValueError, match="an interval needs positive values"):
            interval(values)
