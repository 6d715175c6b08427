from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raygpu.search.objectives import front

POINTS = st.integers(2, 3).flatmap(
    lambda size: st.tuples(
        st.lists(st.lists(st.integers(0, 4), min_size=size, max_size=size), max_size=25),
        st.lists(st.booleans(), min_size=size, max_size=size),
    )
)


@given(POINTS)
def test_the_front_is_what_no_other_point_beats(drawn: tuple[list[list[int]], list[bool]]) -> None:
    points, maximize = drawn
    costs = [[-value if more else value for value, more in zip(point, maximize, strict=True)] for point in points]

    def beats(one: list[int], other: list[int]) -> bool:
        return one != other and all(a <= b for a, b in zip(one, other, strict=True))

    expected = {place for place, own in enumerate(costs) if not any(beats(other, own) for other in costs)}
    found = front(points, maximize)
    assert set(found) == expected
    assert len(found) == len(expected)
    firsts = [costs[place][0] for place in found]
    assert firsts == sorted(firsts), "the best in the first metric first"


def test_equal_points_share_the_front() -> None:
    assert sorted(front([[1.0, 2.0], [1.0, 2.0], [0.0, 3.0]], [True, False])) == [0, 1]
    assert front([], [True, False]) == []
