"""The study of split devices: its rows, its verdict, its plot of several devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.studies import logical_gpus
from raygpu.config.sections import Way
from raygpu.planning.profiles import Point, Profile, Subject


def profile(split: dict[int, float], whole: dict[int, float], spread: float = 0.02) -> Profile:
    def point(way: Way, n: int, gain: float) -> Point:
        low, high = (gain, gain) if n == 1 else (gain * (1 - spread), gain * (1 + spread))
        return Point(way, n, 1000 * gain, gain, gain_low=low, gain_high=high)

    points = [point("process", n, gain) for n, gain in whole.items()]
    points += [point("split", n, gain) for n, gain in split.items()]
    return Profile(Subject("a:B", {}, "", "float32", "GPU", 80.0, 2, {}), 2000, tuple(points))


def test_a_row_has_the_seconds_of_both_ways() -> None:
    rows = logical_gpus.rows(profile({3: 2.0, 5: 4.0}, {1: 1.0, 3: 1.0}), epochs=2)
    assert [(row.n, row.split_s, row.whole_s) for row in rows] == [(1, None, 4.0), (3, 2.0, 4.0), (5, 1.0, None)]
    assert rows[0].speedup is None
    assert rows[1].speedup is not None
    assert rows[1].speedup.middle == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("split", "whole", "words"),
    [
        ({3: 2.0}, {1: 1.0, 3: 1.0}, "the split pays with 3 trainings at once: at 3 it has 2.00x (1.94 to 2.06)"),
        ({3: 2.0, 5: 1.0}, {1: 1.0, 3: 1.0, 5: 2.0}, "with 3 trainings at once, and is slower with 5: at 3"),
        ({3: 1.0}, {1: 1.0, 3: 1.01}, "the split is not shown to pay with any measured number of trainings: at 3"),
        (
            {3: 1.0},
            {1: 1.0, 3: 2.0},
            "the split does not pay: it is slower with 3 trainings at once; at 3 it has 0.50x",
        ),
        ({}, {1: 1.0, 3: 1.0}, "not known whether the split pays"),
    ],
)
def test_the_verdict(split: dict[int, float], whole: dict[int, float], words: str) -> None:
    assert words in logical_gpus.verdict(profile(split, whole), 1)


def test_devices_are_drawn_in_one_plot(tmp_path: Path) -> None:
    one = profile({3: 2.0}, {1: 1.0, 3: 1.0})
    other = replace(one, subject=replace(one.subject, device="another"))
    logical_gpus.draw([one, other], 1, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
