"""Profiles: what is found again, what is discarded, and what is said of the points."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from raygpu.config.sections import Way
from raygpu.planning.profiles import Point, Profile, Subject, rises

SUBJECT = Subject(
    "experiments.digits:Mlp",
    {"hidden": "128", "batch_size": "32"},
    "train float32 1437x64",
    "float32",
    "A100",
    40.0,
    8,
    {"raygpu": "1", "torch": "2.13"},
)


def points(way: Way, gains: dict[int, float], **values: Any) -> list[Point]:
    return [
        Point(way, n, samples_per_s=1000 * gain, gain=gain, rounds=(1.0, 2.0), **values) for n, gain in gains.items()
    ]


def profile(*parts: list[Point], **values: Any) -> Profile:
    return Profile(SUBJECT, 1437, tuple(point for part in parts for point in part), **values)


def test_the_smallest_number_that_comes_close_to_the_best() -> None:
    measured = profile(points("process", {1: 1.0, 2: 1.8, 3: 1.79}), points("fused", {1: 0.5, 8: 4.0, 13: 4.05}))
    best = measured.best()
    assert best is not None
    assert (best.way, best.n) == ("fused", 8)
    peak = measured.best(["process"])
    assert peak is not None
    assert peak.n == 2
    assert measured.best(["mps"]) is None
    assert profile([Point("process", 1, fault="x")]).best() is None


def test_an_advantage_within_noise_is_none() -> None:
    noisy = [
        Point("process", 2, samples_per_s=1800.0, gain=1.8, gain_low=1.5, gain_high=2.1),
        Point("process", 3, samples_per_s=2000.0, gain=2.0, gain_low=1.7, gain_high=2.4),
        Point("process", 5, samples_per_s=9000.0, gain=9.0, gain_low=8.0, gain_high=10.0, doubt="impossible"),
    ]
    measured = profile(points("process", {1: 1.0}), noisy)
    best, highest = measured.best(), measured.highest()
    assert best is not None
    assert highest is not None
    assert (best.n, highest.n) == (2, 3)
    narrow = [replace(p, gain_low=p.gain, gain_high=p.gain) for p in noisy]
    best = profile(points("process", {1: 1.0}), narrow).best()
    assert best is not None
    assert best.n == 3


def test_an_array_without_a_measurable_cost_of_a_member_is_not_predicted_to_rise_for_ever() -> None:
    flat = profile(points("process", {1: 1.0}), points("fused", {n: float(n) for n in (1, 8, 13)}))
    assert flat.rate("fused", 1000) == 13_000
    sloped = profile(points("fused", {n: n / (1 + 0.1 * n) for n in (1, 8, 13)}))
    assert sloped.rate("fused", 1000) == pytest.approx(1000 * 1000 / 101, rel=1e-3)


def test_curves_give_back_what_was_measured() -> None:
    measured = profile(points("process", {1: 1.0, 2: 2.0, 4: 4.0}), points("fused", {1: 0.5, 9: 4.5 / 3}))
    assert measured.rate("process", 3) == pytest.approx(3000)
    step = measured.step()
    assert step is not None
    assert step.at(9) == pytest.approx(9 / 1500)
    assert measured.rate("fused", 9) == pytest.approx(1500)
    assert measured.rate("mps", 2) is None
    taken = profile(points("process", {1: 1.0, 2: 1.5}, host_gib=0.5)).memory("process", "host_gib")
    assert taken is not None
    assert taken.at(4) == pytest.approx(2.0)
    assert measured.memory("process", "device_gib") is None


def test_the_time_of_a_training() -> None:
    point = Point("process", 2, samples_per_s=1437.0, gain=1.5)
    assert profile([point]).time_per_training_s(point, 20) == 20.0
    assert Profile(SUBJECT, None, (point,)).time_per_training_s(replace(point, samples_per_s=4.0), 2) == 0.5
    assert profile([point]).time_per_training_s(Point("process", 3, fault="out of memory"), 1) is None


@pytest.mark.parametrize(
    ("gains", "more"),
    [
        ({1: 1.0}, True),
        ({1: 1.0, 2: 0.5}, True),
        ({1: 1.0, 2: 0.9, 3: 0.8}, False),
        ({1: 1.0, 2: 0.9, 3: 1.2}, True),
        ({1: 1.0, 2: 1.5, 3: 1.4, 5: 1.52}, False),
        ({1: 1.0, 2: 1.5, 3: 1.4, 5: 1.6}, True),
    ],
)
def test_it_goes_on_while_one_of_the_last_two_gained(gains: dict[int, float], more: bool) -> None:
    assert rises(points("process", gains)) is more
    assert not rises([*points("process", gains), Point("process", 99, fault="out of memory")])


def test_threads_stay_only_where_they_win() -> None:
    process, threads = points("process", {1: 1.0, 2: 1.5}), points("threads", {2: 1.2, 3: 1.3})
    losing = profile(process, threads).without_threads_that_lose()
    assert losing.ways == ["process"]
    (note,) = losing.notes
    assert note.startswith("threads: dropped, for 3 at once reached 1.30x")
    assert "process, 2 at once, 1.50x" in note
    for measured in (profile(process, points("threads", {2: 1.6})), profile(threads), profile(process)):
        assert measured.without_threads_that_lose() is measured


@pytest.mark.parametrize(
    ("gains", "n", "told"),
    [
        ({}, 2, False),
        ({1: 1.0}, 2, False),
        ({1: 1.0}, 1, True),
        ({1: 1.0, 2: 1.8}, 8, False),
        ({1: 1.0, 2: 1.8, 4: 1.7}, 8, True),
        ({1: 1.0, 2: 1.8, 4: 3.0, 8: 4.0}, 8, True),
        ({1: 1.0, 2: 1.0, 3: 1.01}, 8, True),
    ],
)
def test_how_far_a_profile_tells_of_a_way(gains: dict[int, float], n: int, told: bool) -> None:
    assert profile(points("process", gains)).tells_of("process", n) is told


def test_memory_that_ended_and_a_note_tell_enough() -> None:
    ended = profile(points("process", {1: 1.0}), [Point("process", 2, fault="out of memory")])
    assert ended.tells_of("process", 8)
    noted = profile(points("process", {1: 1.0}), notes=("mps: not measured: WSL2 has no CUDA MPS",))
    assert noted.tells_of("mps", 2)
    assert not profile(points("process", {1: 1.0}), notes=("fused: step not compiled: no compiler",)).tells_of(
        "fused", 8
    )
    assert not noted.tells_of("fused", 2)


def test_what_one_measurement_could_not_do_is_no_property_of_the_training() -> None:
    passing = (
        "process: 4 at once not tried: a quarter of the sweep's time was over",
        "process: 2 at once not tried: 30.00 GiB of device memory each, and 20.0 GiB are free for more",
        "mps: not measured: no MPS: another raygpu of yours runs MPS on GPU-1; packed trials take turns on the GPU",
        "mps: not measured: nvidia-cuda-mps-control is not installed; it comes with the driver",
        "mps: not measured: WSL2 has no CUDA MPS",
        "packed: 8 processes cannot do as much as one array",
    )
    lasting = (
        "fused: not measured: its batch norms cannot be used in an array, for functorch is not installed",
        "mps: not measured: no MPS: its start failed: the MPS daemon does not answer; packed trials take turns",
        "mps: 2 at once failed: CUDA error",
        "split: not measured: only a KerasExperiment runs on TensorFlow's logical devices",
    )
    measured = profile(points("process", {1: 1.0}), points("fused", {8: 9.0}, doubt="rounds"), notes=passing + lasting)
    assert measured.lasting().notes == lasting
    assert [point.way for point in measured.lasting().points] == ["process"]
    assert measured.tells_of("process", 8)
    assert not measured.lasting().tells_of("process", 8)


@pytest.mark.parametrize(
    ("measured_at", "is_known"),
    [("2026-11-27T13:00:00+00:00", True), ("2026-11-27T11:00:00+00:00", False), ("2026-11-01", False), ("", False)],
)
def test_a_failed_start_of_mps_counts_for_a_day(measured_at: str, is_known: bool) -> None:
    """It may fail for good, and then each probe would take its time for nothing; or the machine was busy."""
    notes = (
        "mps: not measured: no MPS: its start failed: the MPS daemon does not answer",
        "split: not measured: torch",
    )
    kept = profile(points("process", {1: 1.0}), notes=notes, measured_at=measured_at)
    assert kept.as_of(datetime(2026, 11, 28, 12, tzinfo=UTC)).tells_of("mps", 2) is is_known
    assert kept.as_of(datetime(2026, 11, 28, 12, tzinfo=UTC)).tells_of("split", 2)


def test_where_time_ended_stays_until_that_way_is_measured_again() -> None:
    earlier = profile(points("process", {1: 1.0}), ended_s={"process": 12.0, "fused": 12.0})
    later = profile(points("process", {1: 1.0}), ended_s={"mps": 60.0})
    assert later.over(earlier).ended_s == {"fused": 12.0, "mps": 60.0}


def test_another_version_of_the_code_is_another_training() -> None:
    other = replace(SUBJECT, device="H100", versions={**SUBJECT.versions, "torch": "2.14"})
    assert SUBJECT.same_training(other), "on another machine"
    edited = replace(other, versions={**other.versions, "code": "edited"})
    assert not SUBJECT.same_training(edited)
    assert SUBJECT.same_shape(edited)
