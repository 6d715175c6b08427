"""The choice whether a model is sharded, by its bytes and the memory of the smallest device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.sharding import MOST, ParameterSize, TrainingState, choose_sharding

GIB = 2**30
STATE = TrainingState.of(
    [ParameterSize(GIB // 4, 4), ParameterSize(GIB // 4, 4, trains=False)], num_buffers=2, largest=GIB // 8
)


def test_the_state_counts_what_trains_and_what_is_summed() -> None:
    """2 GiB of parameters; 1 GiB each of gradients and of their sums, 2 GiB of buffers."""
    assert STATE.whole == 6 * GIB
    assert STATE.sharded(2) == (5 * GIB) // 2 + 3 * GIB // 8


@pytest.mark.parametrize(
    ("setting", "device_gib", "ranks", "sharded", "line"),
    [
        ("auto", None, 2, False, ""),
        ("auto", 8.0, 1, False, ""),
        ("none", 1.0, 2, False, ""),
        ("full", 8.0, 1, False, "sharding: one device has nothing to share"),
        ("auto", 9.0, 2, False, "sharding: none; 6 GiB of parameters, gradients and optimizer state on each device,"
         " 2.88 GiB if sharded over 2; the smallest has 9.0 GiB"),
        ("auto", 8.0, 2, True, "sharding: full; 6 GiB of parameters, gradients and optimizer state on each device leave"
         " little room (the smallest has 8.0 GiB), 2.88 GiB if sharded over 2"),
        ("auto", 4.0, 2, True, "sharding: full; 6 GiB of parameters, gradients and optimizer state on each device leave"
         " little room (the smallest has 4.0 GiB), 2.88 GiB if sharded over 2, which leaves little room too"),
        ("full", None, 2, True, "sharding: full, as configured; 6 GiB of parameters, gradients and optimizer state on"
         " each device, 2.88 GiB if sharded over 2"),
    ],
)  # fmt: skip
def test_the_choice_and_its_line(setting: str, device_gib: float, ranks: int, sharded: bool, line: str) -> None:
    found = choose_sharding(setting, STATE, ranks, device_gib)  # type: ignore[arg-type]
    assert (found.sharded, found.line) == (sharded, line)


def test_what_hinders_it_is_refused_if_it_was_asked_for_and_else_told() -> None:
    with pytest.raises(ValueError, match="it is compiled"):
        choose_sharding("full", STATE, 2, 8.0, hindrance="it is compiled")
    found = choose_sharding("auto", STATE, 2, 8.0, hindrance="it is compiled")
    assert not found.sharded
    assert found.line.startswith("sharding: none, although 6 GiB of")
    assert found.line.endswith("(the smallest has 8.0 GiB): it is compiled")
    assert "compiled" not in choose_sharding("auto", STATE, 2, 80.0, hindrance="it is compiled").line


@given(st.integers(1, 10**11), st.integers(0, 3), st.integers(2, 64), st.floats(0.5, 200))
def test_auto_shards_exactly_what_leaves_little_room(count: int, buffers: int, ranks: int, device_gib: float) -> None:
    state = TrainingState.of([ParameterSize(count, 4)], num_buffers=buffers, largest=0)
    assert choose_sharding("auto", state, ranks, device_gib).sharded == (state.whole > MOST * device_gib * GIB)
    assert state.sharded(ranks) < state.whole
