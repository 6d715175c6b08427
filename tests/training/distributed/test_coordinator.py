"""Ranks that keep in step: when they exchange, how a batch is split, and what follows from their speeds."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from raygpu.training.distributed.coordinator import FIRST, LONGEST, Coordinator, RankReport
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.hyperparameters import OptimizerSettings


class Two(OneRank):
    """The first of two ranks."""

    world = 2


class Threads:
    """Ranks in threads of this process."""

    def __init__(self, rank: int, world: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.local, self.world, self._board, self._barrier = rank, 1, world, board, barrier

    def gather(self, values: Sequence[Any]) -> list[Any]:
        self._board[self.rank] = values[0]
        self._barrier.wait(60)
        found = list(self._board)
        self._barrier.wait(60)
        return found


def on_threads(world: int, function: Callable[[Any], Any]) -> list[Any]:
    board, barrier = [None] * world, threading.Barrier(world)
    results: list[Any] = [None] * world

    def work(rank: int) -> None:
        results[rank] = function(Threads(rank, world, board, barrier))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_each_rank_takes_its_own_samples_in_as_many_parts() -> None:
    parallel = ParallelSettings(10, accumulate=3, ratios=(5.0, 3.0, 2.0))

    found = on_threads(3, lambda ranks: Coordinator(parallel, ranks).local_batches(20, 30))
    assert found[0] == found[1] == found[2], "all ranks decide alike"
    assert [(local_batch.first, local_batch.samples) for local_batch in found[0]] == [(20, 5), (25, 3), (28, 2)]
    sizes = [local_batch.sizes for local_batch in found[0]]
    assert sizes == [[3, 2], [2, 1], [1, 1]], "in two, for the last has but two"


def test_no_part_has_fewer_samples_than_the_model_needs() -> None:
    parallel = ParallelSettings(10, accumulate=3, ratios=(9.0, 1.0), least=2)
    coordinators = on_threads(2, lambda ranks: Coordinator(parallel, ranks))
    assert coordinators[0].shares == coordinators[1].shares == (8, 2)
    assert [local_batch.sizes for local_batch in coordinators[0].local_batches(0, 10)] == [[8], [2]]
    assert coordinators[0].bounds(23) == [(0, 10), (10, 23)], "three are too few for two ranks"
    even = on_threads(2, lambda ranks: Coordinator(ParallelSettings(10, accumulate=3, least=2), ranks))[0]
    assert [local_batch.sizes for local_batch in even.local_batches(0, 10)] == [[3, 2], [3, 2]]


def test_no_batch_has_fewer_samples_than_ranks() -> None:
    def bounds(ranks: Any) -> list[tuple[int, int]]:
        return Coordinator(ParallelSettings(10), ranks).bounds(33)

    assert on_threads(4, bounds)[0] == [(0, 10), (10, 20), (20, 33)]


def test_ratios_for_other_ranks() -> None:
    with pytest.raises(ValueError, match="2 ratios for 1 ranks"):
        Coordinator(ParallelSettings(10, ratios=(1.0, 2.0)), OneRank())


def exchanges(
    ranks: Any, rate_at: Callable[[int, int, int], float], steps: int, step_s: float = 0.01
) -> tuple[list[int], list[tuple[int, ...]]]:
    """The steps at which ranks exchanged, and the shares after each. rate_at: by step, rank and share."""
    coordinator = Coordinator(ParallelSettings(1000, auto_shares=True), ranks)
    at, shares, since = [], [], 0
    for step in range(1, steps + 1):
        since += 1
        if coordinator.due():
            share = coordinator.shares[ranks.rank]
            report = RankReport(share * since, rate_at(step, ranks.rank, share), math.inf, 0.0)
            coordinator.exchange([report], [], since * step_s)
            at.append(step)
            shares.append(coordinator.shares)
            since = 0
    return at, shares


def test_a_split_by_speed_settles_within_thirty_steps_and_follows() -> None:
    def rate(step: int, rank: int, share: int) -> float:
        speed = (1000.0, 600.0)[rank] if step < 500 else (600.0, 1000.0)[rank]
        return share / (0.005 + share / speed)

    found = on_threads(2, lambda ranks: exchanges(ranks, rate, 1200))
    assert found[0] == found[1], "all ranks decide alike"
    at, shares = found[0]
    assert tuple(at[: len(FIRST)]) == FIRST
    settled = [split for step, split in zip(at, shares, strict=True) if 24 <= step < 500]
    assert all(abs(split[0] - 625) <= 15 for split in settled), settled
    assert abs(shares[-1][0] - 375) <= 15


def test_ranks_exchange_about_once_a_second() -> None:
    (at, _), *_ = on_threads(2, lambda ranks: exchanges(ranks, lambda *_: 1.0, 700, step_s=0.01))
    later = [b - a for a, b in zip(at[len(FIRST) :], at[len(FIRST) + 1 :], strict=False)]
    assert later
    assert all(90 <= steps <= 110 for steps in later)
    (at, _), *_ = on_threads(2, lambda ranks: exchanges(ranks, lambda *_: 1.0, 3 * LONGEST, step_s=1e-5))
    assert at[-1] - at[-2] == LONGEST


def test_a_share_stays_within_its_memory() -> None:
    def split_of(ranks: Any) -> tuple[int, ...]:
        coordinator = Coordinator(ParallelSettings(100, auto_shares=True), ranks)
        most = (40.0, math.inf)[ranks.rank]
        coordinator.exchange([RankReport(50, (900.0, 100.0)[ranks.rank], most, 0.0)], [], 1.0)
        return coordinator.shares

    assert on_threads(2, split_of) == [(40, 60)] * 2


def test_a_rank_without_a_whole_step_moves_nothing() -> None:
    def split_of(ranks: Any) -> tuple[int, ...]:
        coordinator = Coordinator(ParallelSettings(100, auto_shares=True), ranks)
        coordinator.exchange([RankReport(50, None if ranks.rank else 900.0, math.inf, 0.0)], [], 1.0)
        return coordinator.shares

    assert on_threads(2, split_of) == [(50, 50)] * 2


def test_no_device_takes_more_at_once_than_the_model_whatever_its_share() -> None:
    settings = OptimizerSettings.of({"micro_batch_size": 32})
    coordinator = Coordinator(ParallelSettings(128, 2, optimizer_settings=settings), Two())
    assert [batch.sizes for batch in coordinator.local_batches(0, 128)] == [[32, 32], [32, 32]]
    coordinator.balancer.ratios = [5.0, 1.0]
    assert [batch.sizes for batch in coordinator.local_batches(0, 128)] == [[27, 27, 27, 26], [6, 5, 5, 5]]
    assert max(coordinator.local_batches(0, 129)[0].sizes) <= 32, "a last sample that is joined"


@pytest.mark.parametrize(
    ("least", "own", "alike", "line"),
    [
        (1, [[4, 4, 4, 3], [1]], [[15], [1]], "here 1: the smallest share is 1, and a part has 1 at least"),
        (2, [[4, 4, 3, 3], [2]], [[14], [2]], "here 1: the smallest share is 2, and a part has 2 at least"),
    ],
)
def test_a_small_share_is_taken_in_fewer_parts(
    least: int, own: list[list[int]], alike: list[list[int]], line: str
) -> None:
    settings = OptimizerSettings.of({"micro_batch_size": 4})
    parallel = ParallelSettings(16, ratios=(15.0, 1.0), least=least, optimizer_settings=settings)
    coordinator = Coordinator(parallel, Two(), equal_parts=False)
    assert [batch.sizes for batch in coordinator.local_batches(0, 16)] == own
    assert coordinator.parts_line([(0, 16)]) is None
    coordinator.equal_parts = True
    assert [batch.sizes for batch in coordinator.local_batches(0, 16)] == alike
    told = coordinator.parts_line([(0, 16)])
    assert told is not None
    assert told.startswith(f"a device takes up to {alike[0][0]} samples at once, where accumulate or micro_batch_size")
    assert told.endswith(f"asks for parts of 4: all devices take a batch in as many parts, {line}")


def test_parts_that_the_model_needs_larger_are_told() -> None:
    parallel = ParallelSettings(3, accumulate=3, least=2)
    told = Coordinator(parallel, OneRank()).parts_line([(0, 3)])
    assert told is not None
    assert told.endswith("takes up to 3 samples at once, where accumulate or micro_batch_size asks for parts of 1: the"
                         " model needs 2 samples in each part")  # fmt: skip
    assert Coordinator(ParallelSettings(6, accumulate=3, least=2), OneRank()).parts_line([(0, 6)]) is None
