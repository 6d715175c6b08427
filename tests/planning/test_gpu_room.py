"""How many further trainings a GPU has room for: by memory and by gain, alike a sweep's plan."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.cost_model import FreeMemory, ProfiledGroup, Size, at_once
from raygpu.planning.gpu_room import need_of, room_for
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.training_need import Need

SUBJECT = Subject("experiments.digits:Mlp", {}, "", "float32", "NVIDIA A100", 40.0, 16, {})


def profile(rates: dict[int, float], device_gib: float | None = 2.0, host_gib: float | None = 0.5) -> Profile:
    """Samples/s in all by number of processes."""
    points = (
        Point("process", n, rate, rate / rates[1], host_gib=host_gib, device_gib=device_gib)
        for n, rate in rates.items()
    )
    return Profile(SUBJECT, 1000, tuple(points))


PEAKS_AT_4 = profile({1: 100.0, 2: 190.0, 4: 340.0, 6: 330.0})
RISES = profile({1: 100.0, 2: 190.0, 4: 360.0})


def need(of: Profile) -> Need:
    found = need_of(of, "process")
    assert found is not None
    return found


def test_the_memory_binds() -> None:
    room = room_for(need(PEAKS_AT_4), running=1, free=FreeMemory(100.0, 5.0))
    assert (room.more, room.by_memory, room.by_gain, room.bound) == (2, 2, 3, "memory")  # 2 x 2 GiB of 0.9 x 5
    assert room.reason == "2.00 GiB each, 5.0 GiB of device memory free"


def test_the_host_s_memory_binds_too() -> None:
    room = room_for(need(PEAKS_AT_4), running=1, free=FreeMemory(0.6, 39.0))
    assert (room.more, room.by_memory, room.bound) == (1, 1, "memory")
    assert "0.6 GiB of host memory free" in room.reason


def test_the_gain_binds() -> None:
    free = FreeMemory(100.0, 39.0)
    assert need(PEAKS_AT_4).most == 4
    room = room_for(need(PEAKS_AT_4), running=3, free=free)
    assert (room.more, room.by_memory, room.by_gain, room.bound) == (1, 17, 1, "gain")
    assert room.reason == "throughput peaks at 4"
    assert room_for(need(PEAKS_AT_4), running=9, free=free).more == 0
    assert room_for(need(RISES), running=3, free=free).reason == "measured up to 4"


def test_what_was_not_measured_is_not_known() -> None:
    one = need(profile({1: 100.0}))
    room = room_for(one, running=1, free=FreeMemory(100.0, 5.0))
    assert (room.more, room.by_gain, room.bound) == (2, None, "memory")
    nothing = need(profile({1: 100.0}, device_gib=None, host_gib=None))
    room = room_for(nothing, running=1, free=FreeMemory(100.0, 5.0))
    assert (room.more, room.by_memory, room.by_gain, room.bound) == (None, None, None, None)
    room = room_for(need(profile({1: 100.0, 2: 150.0}, host_gib=None)), running=1, free=FreeMemory(100.0, None))
    assert (room.more, room.by_memory, room.bound) == (1, None, "gain")
    assert need_of(PEAKS_AT_4, "fused") is None


def test_a_gpu_of_one_process_at_a_time() -> None:
    free = FreeMemory(100.0, 39.0)
    assert room_for(need(PEAKS_AT_4), 0, free, "one at a time").more == 1
    room = room_for(need(PEAKS_AT_4), 1, free, "one at a time")
    assert (room.more, room.bound, room.reason) == (0, "compute mode", "one at a time")
    fused = replace(need(PEAKS_AT_4), way="fused")
    assert room_for(fused, 1, free, "one at a time").more == 3  # members of one process


def test_a_device_is_told_by_name_and_memory() -> None:
    known = need(PEAKS_AT_4)
    assert known.is_of("NVIDIA A100", 40.04)
    assert not known.is_of("NVIDIA A100", 80.0)
    assert not known.is_of("NVIDIA H100", 40.0)
    assert not known.is_of("NVIDIA A100", None)
    assert replace(known, device_gib=None).is_of("NVIDIA A100", None)


def test_a_need_travels_as_json_has_it() -> None:
    known = need(PEAKS_AT_4)
    assert Need.read(asdict(known)) == known
    assert Need.read(asdict(replace(known, host_line=None))).host_line is None


@given(
    rates=st.lists(st.floats(50.0, 500.0), min_size=2, max_size=5),
    device_gib=st.floats(0.5, 8.0),
    free_gib=st.floats(0.0, 80.0),
)
def test_an_empty_gpu_has_room_for_what_a_sweep_s_plan_puts_there(
    rates: list[float], device_gib: float, free_gib: float
) -> None:
    measured = profile(dict(enumerate(rates, 1)), device_gib=device_gib)
    free = FreeMemory(1000.0, free_gib)
    planned, _ = at_once(ProfiledGroup(measured, Size(10**6, 1, 10**6), fusable=False), "process", free)
    more = room_for(need(measured), 0, free).more
    assert more is not None
    assert planned == max(1, more)


@given(running=st.integers(0, 20), free_gib=st.floats(0.0, 80.0), more_gib=st.floats(0.0, 80.0))
def test_more_that_runs_or_less_that_is_free_never_makes_room(running: int, free_gib: float, more_gib: float) -> None:
    def more(running: int, free_gib: float) -> int:
        found = room_for(need(PEAKS_AT_4), running, FreeMemory(100.0, free_gib)).more
        assert found is not None
        return found

    assert 0 <= more(running + 1, free_gib) <= more(running, free_gib) <= more(running, free_gib + more_gib)


@pytest.mark.parametrize("running", [0, 1])
def test_the_fixed_part_is_taken_once(running: int) -> None:
    points = tuple(Point("process", n, 100.0 * n, float(n), device_gib=(1.0 + n) / n) for n in (1, 2, 4))
    known = need(Profile(SUBJECT, 1000, points))
    assert room_for(known, running, FreeMemory(100.0, 3.0)).by_memory == (1 if not running else 2)
