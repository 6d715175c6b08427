"""Which way a sweep is run in: by what was measured, by its size, and by what has room."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.config.sections import Way
from raygpu.planning.cost_model import (
    DRIVER_S,
    TRIAL_S,
    TUNE_S,
    FreeMemory,
    Option,
    ProfiledGroup,
    Size,
    at_once,
    options,
)
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.schedule import WORKER_S

ROOMY = FreeMemory(host_gib=1000, device_gib=None)
SUBJECT = Subject("experiments.digits:Mlp", {}, "", "float32", "NVIDIA A100", 40.0, 16, {})


def profile(rates: dict[Way, dict[int, float]], start_s: float = 4.0, host_gib: float = 0.2, **more: float) -> Profile:
    """Samples/s in all by way and number; an epoch has 1000 samples, and evaluating takes no time."""
    alone = rates["process"][1]
    points = []
    for way, of_way in rates.items():
        for place, (n, rate) in enumerate(of_way.items()):
            own_s = start_s * (place + 1) if way != "fused" else 0.1 if place else start_s
            each = host_gib if way != "fused" else host_gib / n
            points.append(Point(way, n, rate, rate / alone, start_s=own_s, host_gib=each, **more))
    return Profile(SUBJECT, 1000, tuple(points))


SMALL = profile({"process": {1: 1e4, 2: 1.8e4, 3: 1.7e4}, "fused": {1: 2e3, 8: 1.5e4, 64: 1e5}})
"""A small network: fusing wins by much, if there are many trials."""
LARGE = profile({"process": {1: 100, 2: 180, 3: 240}, "fused": {1: 90, 8: 150, 64: 160}})


def best(measured: Profile, trials: int, epochs: float = 20, room: FreeMemory = ROOMY, **more: int) -> Option:
    size = Size(trials, epochs, more.pop("at_once", trials))
    return options([ProfiledGroup(measured, size, fusable=True)], room, **more)[0]


def test_many_trials_of_a_small_network_are_fused() -> None:
    chosen = best(SMALL, 64)
    assert chosen.fused == (True,)
    assert chosen.wall_s == pytest.approx(TUNE_S + 4 + 1 + 64 * 20 * 1000 / 1e5)
    assert chosen.name == "fused"


def test_few_short_trials_do_not_pay_for_what_many_repay() -> None:
    chosen = best(SMALL, 4, epochs=5)
    assert (chosen.fused, chosen.n) == ((False,), 1), "a second process would cost 4 s, to save less than 1"
    assert chosen.name == "one at a time"
    assert best(SMALL, 4, epochs=500).name == "2 at once in processes"


def test_a_large_network_is_packed() -> None:
    chosen = best(LARGE, 30)
    assert (chosen.way, chosen.n, chosen.fused) == ("process", 3, (False,))
    # ten waves of three
    assert chosen.wall_s == pytest.approx(TUNE_S + 3 * 4.0 + 30 * 20 * 1000 / 240 + 30 / 3 * TRIAL_S)


def test_what_cannot_be_fused_is_packed_beside_what_can() -> None:
    parts = [
        ProfiledGroup(SMALL, Size(64, 20, 64), fusable=True),
        ProfiledGroup(SMALL, Size(10, 20, 10), fusable=False),
    ]
    chosen = options(parts, ROOMY)[0]
    assert chosen.fused == (True, False)
    assert chosen.name.startswith("fused in part")


def test_each_group_has_the_way_that_is_its_own() -> None:
    parts = [ProfiledGroup(SMALL, Size(64, 20, 64), fusable=True), ProfiledGroup(LARGE, Size(30, 20, 30), fusable=True)]
    assert options(parts, ROOMY)[0].fused == (True, False)


def test_workers_of_two_shares_start_anew_in_each_generation() -> None:
    def fused_in_part(members: int) -> float:
        """Return the predicted seconds where the search asks for this many trials at once."""
        parts = [
            ProfiledGroup(SMALL, Size(64, 20, 64, members, 64 // members), fusable=True),
            ProfiledGroup(SMALL, Size(64, 20, 64, members, 64 // members), fusable=False),
        ]
        return next(option.wall_s for option in options(parts, ROOMY) if any(option.fused))

    one_array, eight_arrays = 1 + 64 * 20 * 1000 / 1e5, 8 * 1 + 64 * 20 * 1000 / 1.5e4
    assert fused_in_part(8) - fused_in_part(64) == pytest.approx(eight_arrays - one_array + 7 * 2 * WORKER_S)


def test_a_generation_bounds_what_runs_at_once() -> None:
    assert best(SMALL, 64, at_once=8).wall_s > best(SMALL, 64).wall_s
    part = ProfiledGroup(SMALL, Size(64, 20, 1), fusable=True)
    assert at_once(part, "process", ROOMY) == (1, "1 trials at once")


@pytest.mark.parametrize(
    ("room", "n", "bound"),
    [
        (ROOMY, 3, "measured up to 3"),
        (FreeMemory(host_gib=0.5, device_gib=None), 2, "host memory: 0.20 GiB each, 0.5 GiB free"),
        (FreeMemory(host_gib=1000, device_gib=7.0), 1, "device memory: 6.00 GiB each, 7.0 GiB free"),
        (FreeMemory(host_gib=1000, device_gib=14.0), 2, "device memory: 6.00 GiB each, 14.0 GiB free"),
        (FreeMemory(host_gib=0.01, device_gib=None), 1, "host memory: 0.20 GiB each, 0.0 GiB free"),
    ],
)
def test_the_bound_that_binds_is_named(room: FreeMemory, n: int, bound: str) -> None:
    measured = profile({"process": {1: 100, 2: 180, 3: 240}}, device_gib=6.0)
    part = ProfiledGroup(measured, Size(30, 20, 30), fusable=False)
    assert at_once(part, "process", room) == (n, bound)
    assert max(option.n for option in options([part], room)) <= n


def test_mps_is_used_where_it_gains() -> None:
    both = profile({"process": {1: 100, 2: 120, 3: 110}, "mps": {2: 180, 3: 210}})
    part = ProfiledGroup(both, Size(60, 20, 60), fusable=False)
    assert (options([part], ROOMY)[0].way, options([part], ROOMY)[0].n) == ("mps", 3)
    assert options([part], ROOMY, ways=("process",))[0].way == "process"
    worse = profile({"process": {1: 100, 2: 120}, "mps": {2: 110}})
    assert options([ProfiledGroup(worse, Size(60, 20, 60), fusable=False)], ROOMY)[0].way == "process"


def test_compiling_is_counted_where_it_was_measured() -> None:
    compiled = Point("fused", 64, 3e5, 30, compiled=True, start_s=12)
    measured = Profile(SUBJECT, 1000, (*SMALL.points, compiled))
    assert best(measured, 64, epochs=20).wall_s == pytest.approx(TUNE_S + 4 + 1 + 12.8), "too short to be compiled"
    assert best(measured, 64, epochs=2000).wall_s == pytest.approx(TUNE_S + 4 + 12 + 1281 / 3)
    narrow = Point("fused", 8, 3e4, 3, compiled=True, start_s=12)  # of an earlier profile, twice as fast
    both = replace(measured, points=(*measured.points, narrow))
    assert best(both, 64, epochs=2000).wall_s == best(measured, 64, epochs=2000).wall_s, "speedups do not multiply"


def test_no_way_is_faster_than_the_driver() -> None:
    assert best(SMALL, 1000, epochs=0.001).wall_s == pytest.approx(TUNE_S + 4 + 1000 * DRIVER_S)


def test_what_was_asked_for_is_not_changed() -> None:
    part = ProfiledGroup(SMALL, Size(64, 20, 64), fusable=False)
    assert {option.n for option in options([part], ROOMY, asked=5)} == {5}


def test_evaluation_takes_its_time() -> None:
    slow = Profile(
        SUBJECT,
        1000,
        (Point("process", 1, 1e4, 1.0, start_s=4, evaluation_s=0.1), Point("process", 2, 2e4, 2.0, start_s=8)),
    )
    assert best(slow, 10, epochs=100).wall_s == pytest.approx(TUNE_S + 8 + 10 * 100 * 1000 * 2 / 2e4 + 10 / 2 * TRIAL_S)


@given(st.integers(1, 300), st.floats(0.5, 500), st.integers(1, 8), st.sampled_from([SMALL, LARGE]))
def test_more_work_never_takes_less_time(trials: int, epochs: float, gpus: int, measured: Profile) -> None:
    small = best(measured, trials, epochs, num_gpus=gpus)
    assert best(measured, trials, 2 * epochs, num_gpus=gpus).wall_s >= small.wall_s
    assert best(measured, 2 * trials, epochs, num_gpus=gpus).wall_s >= small.wall_s - 1e-9
    assert best(measured, trials, epochs, num_gpus=2 * gpus).wall_s <= small.wall_s + 1e-9


def test_a_prediction_states_its_spread() -> None:
    def noisy(off: float) -> Profile:
        points = [replace(p, gain_low=p.gain * (1 - off), gain_high=p.gain * (1 + off)) for p in LARGE.points if p.gain]
        return replace(LARGE, points=tuple(points))

    first, second, *_ = options([ProfiledGroup(noisy(0.4), Size(30, 20, 30), fusable=True)], ROOMY)
    assert first.within_noise_of(second)
    assert first.told().startswith(f"{first.name} {first.wall_s:.0f} s (± ")
    exact, other, *_ = options([ProfiledGroup(LARGE, Size(30, 20, 30), fusable=True)], ROOMY)
    assert not exact.within_noise_of(other)
    assert exact.told() == f"{exact.name} {exact.wall_s:.0f} s (0.6 GiB)"


PLAIN: dict[Way, dict[int, float]] = {"process": {1: 100, 2: 180, 4: 300}, "fused": {8: 9e3}}


@pytest.mark.parametrize(
    ("other", "start_s", "rate"),
    [
        (replace(profile({"process": {1: 100}, "fused": {8: 9e3}}), notes=("packed: 8 processes cannot",)), 8, 400),
        (replace(profile(PLAIN), notes=("mps: not measured: another raygpu of yours runs MPS",)), 12, 300),
        (replace(profile(PLAIN), points=(*profile(PLAIN).points, Point("mps", 2, fault="out of memory"))), 12, 300),
    ],
    ids=["beaten", "not measured", "out of memory"],
)
def test_a_group_without_a_way_counts_as_in_processes(other: Profile, start_s: float, rate: float) -> None:
    """The largest group's profile has the ways and numbers; another group's own profile may have fewer."""
    with_mps = profile({**PLAIN, "mps": {2: 190, 4: 360}})
    parts = [
        ProfiledGroup(with_mps, Size(40, 20, 40), fusable=False),
        ProfiledGroup(other, Size(20, 20, 20), fusable=False),
    ]
    chosen = options(parts, ROOMY)[0]
    assert (chosen.way, chosen.n) == ("mps", 4)
    trials_s = 40 * 20 * 1000 / 360 + 20 * 20 * 1000 / rate + 60 / 4 * TRIAL_S
    assert chosen.wall_s == pytest.approx(TUNE_S + start_s + trials_s)
    assert options([replace(part, fusable=True) for part in parts], ROOMY)[0].fused == (True, True)


def test_a_missing_way_has_the_evaluation_and_the_spread_of_processes() -> None:
    noisy = profile({"process": {1: 100, 2: 180}}, evaluation_s=1.0, gain_low=0.8, gain_high=3.0)
    part = ProfiledGroup(noisy, Size(1, 20, 1), fusable=False)
    with_mps = ProfiledGroup(profile({"process": {1: 100}, "mps": {2: 190}}), Size(40, 20, 40), fusable=False)
    ways = {option.way: option for option in options([with_mps, part], ROOMY, ways=("mps",))}
    alone = options([part], ROOMY)[0]
    assert ways["mps"].off_s == pytest.approx(alone.off_s, rel=0.01)
    assert alone.off_s > 1
