"""A trial's epochs, and the order of trials."""

from __future__ import annotations

from raygpu.search.trials import EpochResult, Trial, mean_rate


def test_the_throughput_over_several_epochs() -> None:
    fast, slow = EpochResult(1, {}, num_samples=100, train_s=1.0), EpochResult(2, {}, num_samples=100, train_s=3.0)
    assert mean_rate([fast, slow]) == 50.0
    assert mean_rate([EpochResult(1, {"samples_per_s": 7.0})]) == 7.0
    assert mean_rate([EpochResult(1, {})]) is None
    assert mean_rate([]) is None


def test_ids_are_sorted_in_the_order_of_the_search() -> None:
    ids = ["t0000-1", "t0000-2", "t0000-10", "t0001-1", "t9999-1", "t9999-10", "t10000-1"]
    assert sorted(ids, key=Trial.order) == ids
