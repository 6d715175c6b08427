from __future__ import annotations

from itertools import pairwise

import pytest

from raygpu.records.curve import MOST_POINTS, Curve


def test_a_short_curve_has_every_value_and_a_long_one_few() -> None:
    curve = Curve()
    for value in range(1000):
        curve.add(value + 1, float(value))
        points = curve.points()
        assert len(points) <= MOST_POINTS + 1
        assert points[-1] == value
        assert points == sorted(points)
    assert points[0] == 0.0
    gaps = {round(b - a) for a, b in pairwise(points[:-1])}
    assert len(gaps) == 1, "evenly spaced"


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("epoch", [0, 1, 50, 300, 999])
def test_a_cut_curve_has_the_values_up_to_an_epoch_alone(epoch: int, every: int) -> None:
    """Not every epoch has the metric."""
    curve = Curve()
    for known in range(every, 1000, every):
        curve.add(known, float(known))
    before = curve.points()
    curve.cut(epoch)
    assert curve.points() == [value for value in before if value <= epoch]
    curve.add(epoch + 1, 7777.0)
    assert curve.points()[-1] == 7777.0


def test_a_curve_that_is_cut_after_its_newest_value_keeps_it() -> None:
    curve = Curve()
    for epoch in range(1, 101):
        curve.add(epoch, float(epoch))
    curve.cut(105)
    assert curve.points()[-1] == 100.0
