"""Batches cover each sample once, in an order that follows from seed and epoch alone."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.batches import (
    BEHIND,
    NoiseEstimator,
    ShareBalancer,
    batch_bounds,
    epoch_order,
    num_batches,
    parts,
    split_batch,
)

counts = st.integers(1, 300)


@given(num_samples=counts, batch_size=counts)
def test_batches_cover_every_sample_once(num_samples: int, batch_size: int) -> None:
    bounds = list(batch_bounds(num_samples, batch_size))
    assert bounds[0][0] == 0
    assert bounds[-1][1] == num_samples
    assert all(before[1] == after[0] for before, after in pairwise(bounds))
    assert num_batches(num_samples, batch_size) == len(bounds)
    sizes = [end - start for start, end in bounds]
    assert all(size == batch_size for size in sizes[:-1])
    assert 1 <= sizes[-1] <= batch_size + 1
    if batch_size > 1 and num_samples > 1:
        assert sizes[-1] > 1


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "bounds"),
    [
        (6, 3, [(0, 3), (3, 6)]),
        (8, 3, [(0, 3), (3, 6), (6, 8)]),
        (7, 3, [(0, 3), (3, 7)]),
        (2, 1, [(0, 1), (1, 2)]),
        (1, 3, [(0, 1)]),
    ],
)
def test_a_last_sample_joins_the_batch_before(num_samples: int, batch_size: int, bounds: list[tuple[int, int]]) -> None:
    assert list(batch_bounds(num_samples, batch_size)) == bounds


@given(seed=st.integers(0, 2**63), epoch=st.integers(1, 1000), num_samples=counts)
def test_an_order_is_a_permutation_and_repeats(seed: int, epoch: int, num_samples: int) -> None:
    order = epoch_order(seed, epoch, num_samples)
    assert order.dtype == np.int64
    assert sorted(order) == list(range(num_samples))
    assert (order == epoch_order(seed, epoch, num_samples)).all()


@given(seed=st.integers(0, 2**32 - 2), epoch=st.integers(1, 1000))
def test_an_order_depends_on_seed_and_epoch(seed: int, epoch: int) -> None:
    # 100! orders: two equal ones would be a fault, not chance. (seed, epoch) swapped is another order too.
    order = epoch_order(seed, epoch, 100).tolist()
    assert order != epoch_order(seed + 1, epoch, 100).tolist()
    assert order != epoch_order(seed, epoch + 1, 100).tolist()
    assert seed == epoch or order != epoch_order(epoch, seed, 100).tolist()


@given(st.integers(0, 2**32), st.integers(1, 50), st.integers(1, 50), st.integers(1, 12))
def test_epochs_of_another_length_follow_each_other_through_the_passes(
    seed: int, num_samples: int, per_epoch: int, epochs: int
) -> None:
    each = [epoch_order(seed, epoch, num_samples, per_epoch) for epoch in range(1, epochs + 1)]
    assert {len(order) for order in each} == {per_epoch}
    whole = np.concatenate(each)
    for start in range(0, len(whole) - num_samples + 1, num_samples):
        assert sorted(whole[start : start + num_samples]) == list(range(num_samples)), "each sample once in a pass"
    if per_epoch != num_samples:
        other = epoch_order(seed, 1, num_samples, len(whole)) if len(whole) != num_samples else whole
        assert (whole == other).all(), "the order of samples does not depend on where epochs end"


def test_the_order_of_a_pass_is_random() -> None:
    """Of many orders, each place has each sample equally often, and neighbours are no more alike than by chance."""
    orders = np.stack([epoch_order(seed, 1, 10, 20)[:10] for seed in range(4000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=10) for place in range(10)])
    assert ((counts - 400) ** 2 / 400).sum() < 130, "chi-squared with 81 degrees of freedom: above in one case of 2,000"
    steps = np.diff(epoch_order(0, 1, 100_000, 50_000))
    assert abs(np.abs(steps).mean() / 100_000 - 1 / 3) < 0.01
    assert len(set(map(bytes, orders))) > 3990


def test_an_epoch_of_many_samples_takes_no_time_for_the_others() -> None:
    assert len(set(epoch_order(0, 10**6, 10**12, 1000))) == 1000


@given(counts, counts, st.integers(2, 9))
def test_a_last_batch_that_is_too_small_joins_the_one_before(num_samples: int, batch_size: int, least: int) -> None:
    sizes = [end - start for start, end in batch_bounds(num_samples, batch_size, least)]
    assert sum(sizes) == num_samples
    assert all(size == batch_size for size in sizes[:-1])
    assert sizes[-1] >= min(least, batch_size, num_samples)


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
    assert max(times) <= (1 + BEHIND) * sum(times) / len(times) + max(each for _, each in devices)


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


def test_the_noise_scale_of_gradients_that_are_known() -> None:
    """Gradients with mean 1 in each of 50 dimensions and variance 4: tr(S) / |G|^2 = 200 / 50 = 4."""
    rng, estimator = np.random.default_rng(0), NoiseEstimator()
    sizes = [12, 4, 8]
    for step in range(200):
        own = [1 + 2 * rng.standard_normal(50) / size**0.5 for size in sizes]
        whole = sum(size * g for size, g in zip(sizes, own, strict=True)) / sum(sizes)
        estimator.add(sizes, [float(g @ g) for g in own], float(whole @ whole))
        if step < 7:
            assert estimator.scale() is None
    scale = estimator.scale()
    assert scale is not None
    assert scale.low < 4 < scale.high or scale.samples == pytest.approx(4, rel=0.25)
    assert scale.high - scale.low < 2


def test_no_noise_scale_of_one_rank_or_of_noise_alone() -> None:
    alone, noise = NoiseEstimator(), NoiseEstimator()
    for _ in range(20):
        alone.add([8], [1.0], 1.0)
        noise.add([8, 8], [2.0, 2.0], 0.5)
    assert alone.scale() is None
    assert noise.scale() is None


def test_limits_that_leave_no_room_do_not_hold() -> None:
    balance = ShareBalancer([1.0, 1.0], most=[45.0, 45.0])
    assert balance.split(90) == [45, 45]
    assert balance.split(100) == [50, 50]
