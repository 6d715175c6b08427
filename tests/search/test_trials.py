"""A trial's epochs."""

from __future__ import annotations

from raygpu.search.trials import EpochResult, mean_rate


def test_the_throughput_over_several_epochs() -> None:
    fast, slow = EpochResult(1, {}, num_samples=100, train_s=1.0), EpochResult(2, {}, num_samples=100, train_s=3.0)
    assert mean_rate([fast, slow]) == 50.0
    assert mean_rate([EpochResult(1, {"samples_per_s": 7.0})]) == 7.0
    assert mean_rate([EpochResult(1, {})]) is None
    assert mean_rate([]) is None
