"""Who gets which part of the GPUs: at most its own, what is left, or a place in the queue."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.engines.cluster.service.gpu_leases import GpuLeases, GpuRequest

HALF = Fraction(1, 2)


def test_each_takes_at_most_its_own_and_the_next_what_is_left() -> None:
    leases = GpuLeases(2)
    assert leases.ask(1, GpuRequest("a", most=HALF)) == HALF
    assert leases.ask(2, GpuRequest("b")) == Fraction(3, 2)
    assert leases.free == 0
    assert leases.ask(3, GpuRequest("c")) is None
    assert leases.line() == "0 of 2 GPUs free; a 0.5, b 1.5"
    assert leases.leave(1) == [(3, HALF)]
    assert leases.leave(2) == []
    assert leases.leave(3) == []
    assert leases.free == 2


def test_too_little_is_waited_for_and_a_measurement_wants_all() -> None:
    leases = GpuLeases(1)
    leases.ask(1, GpuRequest("a", most=HALF))
    assert leases.ask(2, GpuRequest("whole trials", least=Fraction(1))) is None
    assert leases.leave(1) == [(2, Fraction(1))]
    leases.leave(2)
    leases.ask(1, GpuRequest("a", most=HALF))
    assert leases.ask(3, GpuRequest("pack", whole=True)) is None
    assert leases.leave(1) == [(3, Fraction(1))]


def test_a_small_wish_does_not_overtake() -> None:
    leases = GpuLeases(1)
    leases.ask(1, GpuRequest("a", most=HALF))
    leases.ask(2, GpuRequest("large", least=Fraction(1)))
    assert leases.ask(3, GpuRequest("small", most=Fraction(1, 4))) is None
    assert leases.leave(2) == [(3, Fraction(1, 4))]


def test_more_than_there_is_gets_all() -> None:
    assert GpuLeases(1).ask(1, GpuRequest("a", most=Fraction(4), least=Fraction(2))) == 1


def test_a_wish_travels() -> None:
    request = GpuRequest("sweep x", most=Fraction(1, 3), least=None, whole=True)
    assert GpuRequest.of(request.as_json()) == request
    with pytest.raises(KeyError):
        GpuRequest.of({})


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.fractions("1/8", 3))))
def test_never_more_than_all_and_never_nothing(steps: list[tuple[bool, int, Fraction]]) -> None:
    leases = GpuLeases(2)
    for asks, who, most in steps:
        if not asks:
            granted = [part for _, part in leases.leave(who)]
        elif who not in leases.taken and who not in leases.waiting:
            granted = [part] if (part := leases.ask(who, GpuRequest(str(who), most=most))) is not None else []
        else:
            granted = []
        assert all(part > 0 for part in granted)
        assert leases.free >= 0
        assert not (leases.waiting and not leases.taken)
