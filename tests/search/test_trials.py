"""A trial's epochs, and the order of trials."""

from __future__ import annotations

import math

import pytest

from raygpu.search.trials import EpochResult, Trial, joint_rate, mean_rate


def test_the_throughput_over_several_epochs() -> None:
    fast, slow = EpochResult(1, {}, num_samples=100, train_s=1.0), EpochResult(2, {}, num_samples=100, train_s=3.0)
    assert mean_rate([fast, slow]) == 50.0
    assert mean_rate([EpochResult(1, {"samples_per_s": 7.0})]) == 7.0
    assert mean_rate([EpochResult(1, {})]) is None
    assert mean_rate([]) is None


def of_array(epoch: int, train_s: float) -> EpochResult:
    return EpochResult(epoch, {}, num_samples=100, train_s=train_s)


def test_the_throughput_of_an_array_counts_each_epoch_with_the_trials_that_it_had() -> None:
    going_on = [of_array(1, 4.0), of_array(2, 1.0)]
    assert joint_rate([going_on, [of_array(1, 4.0)], [of_array(1, 4.0)], [of_array(1, 4.0)]]) == 500 / 5.0
    assert joint_rate([going_on]) == mean_rate(going_on) == 40.0


def test_the_throughput_of_trials_side_by_side_is_the_sum_of_theirs() -> None:
    assert joint_rate([[of_array(1, 1.0)], [of_array(1, 2.0)]]) == pytest.approx(150.0)
    assert joint_rate([[EpochResult(1, {"samples_per_s": 7.0})], [EpochResult(1, {"samples_per_s": 8.0})]]) == 15.0
    assert joint_rate([[EpochResult(1, {"samples_per_s": math.nan})], []]) is None


def test_ids_are_sorted_in_the_order_of_the_search() -> None:
    ids = ["t0000-1", "t0000-2", "t0000-10", "t0001-1", "t9999-1", "t9999-10", "t10000-1"]
    assert sorted(ids, key=Trial.order) == ids
