"""How members are cut into tiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.array_tiles import arrange, best_width, compiling, level, next_rung, repays, widest
from raygpu.planning.scaling_laws import Affine

EAGER = Affine(fixed=0.004, each=0.0001)


@given(
    count=st.integers(0, 300),
    width=st.integers(1, 128),
    compiled=st.dictionaries(st.integers(1, 128), st.floats(1e-4, 1.0), max_size=3),
)
def test_every_member_has_one_row(count: int, width: int, compiled: dict[int, float]) -> None:
    parts = arrange(count, width, EAGER, compiled)
    assert [member for part in parts for member in part.members] == list(range(count))
    assert all(0 < len(part.members) <= part.width for part in parts)
    assert all(part.width in compiled for part in parts if part.width != len(part.members))


def test_a_rest_is_filled_up_where_that_is_faster() -> None:
    assert [part.width for part in arrange(70, 64, EAGER, {64: 0.001})] == [64, 64]
    assert [part.width for part in arrange(70, 64, EAGER, {64: 0.1})] == [64, 6]
    assert [part.width for part in arrange(70, 64, EAGER, {64: 0.001, 8: 0.0002})] == [64, 8]
    assert [part.width for part in arrange(70, 64, EAGER, {})] == [64, 6]


def test_costs_are_affine() -> None:
    cost = Affine.fit({4: 0.0044, 16: 0.0056, 64: 0.0104})
    assert cost.at(100) == pytest.approx(0.014)
    assert Affine.fit({8: 0.008}).at(16) == pytest.approx(0.016)


@pytest.mark.parametrize(("count", "width", "found"), [(100, 64, 50), (64, 64, 64), (65, 64, 33), (3, 64, 3)])
def test_tiles_are_level(count: int, width: int, found: int) -> None:
    assert level(count, width) == found


def test_the_best_width() -> None:
    step_s = {8: 1.0, 16: 1.01, 32: 1.9, 64: 3.75}
    assert best_width(step_s, 64) == 32, "64 gains little"
    assert best_width(step_s, 16) == 16
    assert best_width({8: 1.0, 16: 1.99, 32: 4.0}, 32) == 8, "narrower needs less memory"


def test_memory_bounds_the_width() -> None:
    assert widest(100, {4: 1400, 8: 1800}, 5000) == 40
    assert widest(30, {4: 1400, 8: 1800}, 5000) == 30
    assert widest(100, {4: 1400, 8: 1800}, None) == 100
    assert widest(100, {4: 1400}, 10) == 100, "one measurement tells no slope"
    assert widest(100, {4: 1400, 8: 1800}, 10) == 1


def test_the_ladder() -> None:
    assert next_rung(10, [64]) == 16
    assert next_rung(10, [64, 16]) is None
    assert next_rung(50, [64]) is None
    assert next_rung(1, [64]) == 1


@pytest.mark.parametrize(("eager_s", "earlier_s", "keeps", "first", "when"), [
    (0.9, 0.0, True, False, "never"), (0.9, 100.0, True, False, "never"), (5.0, 0.0, True, False, "later"),
    (19.0, 0.0, True, False, "later"), (21.0, 0.0, True, False, "beside"), (21.0, 0.0, True, True, "later"),
    (5.0, 10.0, True, False, "later"), (5.0, 16.0, True, False, "beside"), (21.0, 0.0, False, False, "now"),
    (19.0, 0.0, False, False, "never"),
])  # fmt: skip
def test_when_a_step_is_compiled(eager_s: float, earlier_s: float, keeps: bool, first: bool, when: str) -> None:
    assert compiling("cpu", eager_s, keeps=keeps, first=first, earlier_s=earlier_s) == when


def test_compiling_repays_long_work() -> None:
    assert repays("cpu", 1000.0)
    assert not repays("cpu", 1.0)
