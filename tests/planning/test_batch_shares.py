"""The split of a batch over devices."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.batch_shares import LAG, ShareBalancer, parts, split_batch, with_least

counts = st.integers(1, 300)


@pytest.mark.parametrize(
    ("total", "ratios", "shares"),
    [
        (100, (768, 560), [58, 42]),
        (100, (3, 2), [60, 40]),
        (7, (1, 1, 1), [3, 2, 2]),
        (3, (98, 1, 1), [1, 1, 1]),
        (20, (99, 1), [19, 1]),
        (10, (5, 3, 2), [5, 3, 2]),
    ],
)
def test_a_batch_is_split_by_largest_remainder(total: int, ratios: tuple[float, ...], shares: list[int]) -> None:
    assert split_batch(total, ratios) == shares


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.integers(0, 500), st.data())
def test_shares_add_up_within_what_each_holds(ratios: list[float], more: int, data: st.DataObject) -> None:
    total = len(ratios) + more
    shares = split_batch(total, ratios)
    assert sum(shares) == total
    assert min(shares) >= 1
    exact = [total * ratio / sum(ratios) for ratio in ratios]
    if min(exact) >= 1:
        assert all(abs(share - wanted) < 1 for share, wanted in zip(shares, exact, strict=True))
    most = data.draw(st.lists(st.floats(1, 600), min_size=len(ratios), max_size=len(ratios)))
    if sum(map(int, most)) < total:
        with pytest.raises(ValueError, match="and the devices hold"):
            split_batch(total, ratios, most)
        return
    bound = split_batch(total, ratios, most)
    assert sum(bound) == total
    assert all(1 <= share <= limit for share, limit in zip(bound, most, strict=True))


def test_what_one_cannot_hold_the_others_get_in_their_ratios() -> None:
    assert split_batch(100, (6, 3, 1), (30, math.inf, math.inf)) == [30, 53, 17]


def test_no_share_is_below_what_each_device_needs() -> None:
    assert with_least([10, 1, 5], 2) == [9, 2, 5]
    assert with_least([3, 3], 3) == [3, 3]
    with pytest.raises(ValueError, match="4 samples for 2 devices; each needs 3 at least"):
        with_least([3, 1], 3)


def test_fewer_samples_than_devices() -> None:
    with pytest.raises(ValueError, match="2 samples for 3 devices; each needs one at least"):
        split_batch(2, (1, 1, 1))


@given(counts, st.integers(1, 20))
def test_parts_of_a_share(count: int, number: int) -> None:
    sizes = parts(count, number)
    assert sum(sizes) == count
    assert len(sizes) == min(count, number)
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.tuples(st.floats(0.001, 0.01), st.floats(1e-5, 1e-4)), min_size=2, max_size=5))
def test_a_balance_ends_where_all_take_the_same_time(devices: list[tuple[float, float]]) -> None:
    """Each device takes a fixed time and one for each sample."""
    balance, total = ShareBalancer([1.0] * len(devices)), 10_000
    for _ in range(200):
        shares = balance.split(total)
        times = [fixed + each * n for (fixed, each), n in zip(devices, shares, strict=True)]
        balance.tell(shares, [n / t for n, t in zip(shares, times, strict=True)])
    shares = balance.split(total)
    times = [fixed + each * n for (fixed, each), n in zip(devices, shares, strict=True)]
    # A sample more or less on the slowest is the most that rounding leaves.
    assert max(times) <= (1 + LAG) * sum(times) / len(times) + max(each for _, each in devices)


def test_a_balance_stays_while_rates_hardly_change() -> None:
    balance = ShareBalancer([1.0, 1.0])
    assert balance.tell([80, 80], [100.0, 60.0])
    assert balance.split(160) == [100, 60]
    assert not balance.tell([100, 60], [101.0, 59.0])
    assert balance.split(160) == [100, 60]
    assert balance.tell([100, 60], [100.0, 52.0]), "one is behind"


def test_a_single_measurement_that_is_far_off_moves_a_split_but_a_little() -> None:
    balance = ShareBalancer([1.0, 1.0])
    for _ in range(5):
        balance.tell([80, 80], [100.0, 60.0])
    balance.tell([100, 60], [100.0, 30.0])
    assert 48 <= balance.split(160)[1] < 60
    for _ in range(2):
        balance.tell(balance.split(160), [50.0, 50.0])
    assert balance.split(160) == [80, 80], "but a change that is there twice is followed"


def test_limits_that_leave_no_room_do_not_hold() -> None:
    balance = ShareBalancer([1.0, 1.0], most=[45.0, 45.0])
    assert balance.split(90) == [45, 45]
    assert balance.split(100) == [50, 50]
