"""Widths of compiled steps, and when one is loaded or compiled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.array_tiles import IDLE, compiling, covered, load_repays, padded, serves


@given(st.integers(1, 512))
def test_a_padded_width_holds_the_members_and_wastes_little(count: int) -> None:
    width = padded(count)
    assert count <= width <= IDLE * count
    assert padded(width) == width
    assert serves(width, count)


def test_arrays_of_about_a_size_share_a_width() -> None:
    assert [padded(count) for count in (19, 22, 23, 24)] == [20, 24, 24, 24]
    assert len({padded(count) for count in range(1, 129)}) <= 24


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_width_serves_no_more_members_than_it_has(width: int, count: int) -> None:
    assert not serves(width, count) or count <= width <= IDLE * count + 1


def test_loading_repays_earlier_than_compiling() -> None:
    assert load_repays(0.5)
    assert not load_repays(0.01)
    assert compiling("cpu", 0.5, keeps=True, first=False) == "never"


def test_kept_widths_cover_what_lies_between_them() -> None:
    kept = {4: 1.0, 8: 2.0, 16: 4.0, 24: 6.0}
    assert covered(kept, 24) == kept
    assert covered(kept, 20) == {4: 1.0, 8: 2.0, 16: 4.0, 20: 5.0}


def test_kept_widths_cover_a_little_more_than_the_widest() -> None:
    kept = {4: 1.0, 8: 2.0, 16: 4.0}
    found = covered(kept, 20)
    assert found is not None
    assert found[20] == pytest.approx(5.0)
    assert covered(kept, 21) is None, "so they are measured"
    assert covered({}, 3) is None
    assert covered({8: 2.0}, 4) is None
