from __future__ import annotations

from itertools import pairwise

from raygpu.records.curve import MOST_POINTS, Curve


def test_a_short_curve_has_every_value_and_a_long_one_few() -> None:
    curve = Curve()
    for value in range(1000):
        curve.add(float(value))
        points = curve.points()
        assert len(points) <= MOST_POINTS + 1
        assert points[-1] == value
        assert points == sorted(points)
    assert points[0] == 0.0
    gaps = {round(b - a) for a, b in pairwise(points[:-1])}
    assert len(gaps) == 1, "evenly spaced"
