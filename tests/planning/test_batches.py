"""Batches cover each sample once, in an order that follows from seed and epoch alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.batches import batch_bounds, epoch_order, evaluation_bounds, num_batches

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


def test_an_evaluation_has_no_batch_of_one_sample() -> None:
    assert evaluation_bounds(1025) == [(0, 1025)]
    assert evaluation_bounds(2049) == [(0, 1024), (1024, 2049)]
    assert evaluation_bounds(3) == [(0, 3)]
