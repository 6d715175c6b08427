"""What a later sweep need not measure again, and what it has to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raygpu.config.sections import Way
from raygpu.planning.cost_model import FreeMemory
from raygpu.planning.profile_coverage import array_outdoes, ended_by_time, fibonacci, lacking, tried
from raygpu.planning.profiles import Point, Profile
from tests.planning.test_profiles import points, profile

ROOMY = FreeMemory(1000.0, 80.0)
RISING = {1: 1.0, 2: 1.9, 3: 2.8}


def of_gib(each: float) -> Profile:
    return profile(points("process", RISING, device_gib=each))


@pytest.mark.parametrize(("each", "is_lacking"), [(1.0, True), (16.0, True), (19.0, False), (30.0, False)])
def test_more_than_the_device_holds_is_not_measured(each: float, is_lacking: bool) -> None:
    """A pack on an idle device ends there, without a note that is kept: another time less may be free, or more."""
    numbers: dict[Way, list[int]] = {"process": [1, 2, 4, 8]}
    assert lacking(of_gib(each), numbers, ROOMY) == (["process"] if is_lacking else [])
    assert lacking(replace(of_gib(each), points=()), numbers, ROOMY) == ["process"]


@pytest.mark.parametrize(
    ("was_free", "is_free", "is_lacking"),
    [(20.0, 80.0, True), (20.0, 21.0, False), (79.0, 80.0, False), (None, 80.0, False), (20.0, None, False)],
)
def test_memory_that_ended_on_a_busy_gpu_is_measured_again_on_a_free_one(
    was_free: float | None, is_free: float | None, is_lacking: bool
) -> None:
    ended = Point("process", 4, fault="out of memory", free_gib=was_free)
    measured = profile(points("process", {1: 1.0, 2: 1.9}, device_gib=2.0), [ended])
    room = FreeMemory(1000.0, is_free)
    assert lacking(measured, {"process": [1, 2, 4, 8]}, room) == (["process"] if is_lacking else [])


def test_each_way_counts() -> None:
    both = profile(points("process", {**RISING, 8: 4.0}), points("fused", {4: 3.0}))
    assert lacking(both, {"process": [1, 8], "fused": [8], "mps": [2]}, ROOMY) == ["fused", "mps"]
    assert lacking(both, {"process": [1, 8], "fused": [4]}, ROOMY) == []


@pytest.mark.parametrize(
    ("each", "numbers"), [(10.0, [1, 2, 3, 5]), (9.1, [1, 2, 3, 5]), (3.0, [1, 2, 3, 5, 8, 13, 21])]
)
def test_numbers_between_those_that_are_tried_are_not_missed(each: float, numbers: list[int]) -> None:
    """Seven trainings fit, say, and after five a measurement tries eight."""
    measured = profile(points("process", {n: 0.9 * n for n in numbers}, device_gib=each))
    assert lacking(measured, tried(["process"], fibonacci(), 34), ROOMY) == []
    assert lacking(measured, {"process": [1, 2, 4, 8]}, ROOMY) == [], "as little as a sweep's probe would try"
    shorter = replace(measured, points=measured.points[:-1])
    assert lacking(shorter, tried(["process"], fibonacci(), 34), ROOMY) == ["process"]


def test_a_way_is_tried_where_it_differs_and_as_far_as_it_goes() -> None:
    by_way = tried(["process", "mps", "threads", "split"], fibonacci(), 60)
    assert {way: (numbers[0], numbers[-1]) for way, numbers in by_way.items()} == {
        "process": (1, 55), "mps": (2, 34), "threads": (2, 8), "split": (2, 55),
    }  # fmt: skip
    assert tried(["process", "mps"], fibonacci(), 1) == {"process": [1]}
    assert tried(["threads"], [4, 6, 10], 34) == {"threads": [4, 6]}


@pytest.mark.parametrize(
    ("members", "processes", "worth", "outdoes"),
    [(64, 8, 1.0, True), (63, 8, 1.0, False), (64, 48, 1.0, False), (64, 8, 3.0, False), (8, 1, 1.0, True)],
)
def test_only_arrays_as_wide_as_the_sweep_s_outdo_processes(
    members: int, processes: int, worth: float, outdoes: bool
) -> None:
    wide = profile(points("process", {1: 1.0}), points("fused", {8: 4.0, 64: 20.0}))
    assert array_outdoes(wide.points, members, processes, worth) is outdoes
    assert not array_outdoes(profile(points("fused", {8: 4.0})).points, members, processes, worth)


def test_a_longer_sweep_s_probe_goes_on_where_time_had_ended() -> None:
    ended = replace(of_gib(1.0), ended_s={"process": 15.0})
    assert ended_by_time(ended, ["process"], 15.0)
    assert not ended_by_time(ended, ["process"], 30.0)
    assert not ended_by_time(ended, ["process", "fused"], 15.0), "not tried at all"
