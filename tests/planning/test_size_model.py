"""The pace of kinds of trials that have not trained yet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.size_model import ModelSize, predicted_pace

SMALL, MIDDLE, LARGE = ModelSize(5e3, 32), ModelSize(1e4, 32), ModelSize(2e4, 32)


def test_one_kind_alone_counts_mostly_by_its_steps() -> None:
    assert predicted_pace([(SMALL, 1.0)], SMALL) == pytest.approx(1.0)
    assert predicted_pace([(SMALL, 1.0)], LARGE) == pytest.approx(0.75 + 0.25 * 4)
    assert predicted_pace([(SMALL, 1.0)], ModelSize(5e3, 64)) == pytest.approx(0.75 / 2 + 0.25)


def test_kinds_whose_launches_cost_all_make_no_difference_by_their_parameters() -> None:
    assert predicted_pace([(SMALL, 1.0), (MIDDLE, 1.0)], LARGE) == pytest.approx(1.0, rel=0.25)


def test_kinds_whose_arithmetic_costs_all_grow_with_their_parameters() -> None:
    assert predicted_pace([(SMALL, 1.0), (MIDDLE, 2.0)], LARGE) == pytest.approx(4.0, rel=0.1)


@given(
    a=st.floats(1e-3, 10.0),
    b=st.floats(1e-7, 1e-3),
    sizes=st.lists(st.tuples(st.floats(1e2, 1e8), st.sampled_from([8, 32, 128, 512])), min_size=2, max_size=6),
)
def test_a_prediction_is_a_time_whatever_was_seen(a: float, b: float, sizes: list[tuple[float, float]]) -> None:
    kinds = [ModelSize(*each) for each in sizes]
    seen = [(kind, a / kind.batch + b * kind.parameters) for kind in kinds[:-1]]
    assert predicted_pace(seen, kinds[-1]) > 0
