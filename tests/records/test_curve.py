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


def test_a_cut_curve_has_the_first_values_alone() -> None:
    for count in (0, 1, 50, 300, 999):
        curve, short = Curve(), Curve()
        for value in range(1000):
            curve.add(float(value))
        for value in range(count):
            short.add(float(value))
        curve.cut(count)
        assert set(curve.points()) <= set(short.points()) | set(map(float, range(count)))
        curve.add(7777.0)
        assert curve.points()[-1] == 7777.0
