"""The code of an experiment sees no process group while it is evaluated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from raygpu import Mean
from raygpu.training.distributed.hidden_group import group_hidden
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from tests.ranks import on_ranks
from tests.training.distributed.parallel_cases import Plain
from tests.training.distributed.parts import sharded, training

HP = {"lr": 0.05, "batch_size": 30}


class _Collected:
    """A metric like those of torchmetrics: it adds up what it gets, over all ranks where there are any."""

    def __init__(self) -> None:
        self.total = torch.zeros((), dtype=torch.float64)

    def update(self, value: torch.Tensor) -> None:
        self.total = self.total + value

    def compute(self) -> torch.Tensor:
        total = self.total.clone()
        if dist.is_available() and dist.is_initialized():
            dist.barrier()
            dist.all_reduce(total)
        return total


class Collecting(Plain):
    """Counts its samples and the labels of them by a metric that asks all ranks."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        samples, labels = _Collected(), _Collected()
        samples.update(torch.tensor(len(targets)))
        labels.update(targets.sum())
        return {"labels": Mean(labels.compute(), len(targets)), "samples": samples.compute()}


def evaluated(ranks: Ranks, make: Any) -> dict[str, float]:
    """Metrics of an epoch over the ranks, on rank 0."""
    experiment = Collecting()
    own = make(experiment, experiment.data(), HP, ParallelSettings(30), ranks, epochs=1, dtype=torch.float64)
    metrics: dict[str, float] = {}
    while (progress := own.advance()) is not None:
        if progress.result is not None:
            metrics = progress.result.metrics
    assert ranks.world == 1 or dist.get_world_size() == ranks.world, "the training goes on with its group"
    return {name: value for name, value in metrics.items() if name != "train/loss"}


@pytest.mark.parametrize("make", [training, sharded])
def test_metrics_that_ask_all_ranks_are_those_of_one_device(make: Any) -> None:
    alone = evaluated(OneRank(), training)
    assert alone["validation/samples"] == 16
    found, _ = on_ranks(2, evaluated, make)
    assert found == pytest.approx(alone)


def hidden(ranks: Ranks) -> tuple[bool, list[int], bool]:
    with group_hidden():
        seen, messages = dist.is_initialized(), ranks.gather([ranks.rank])
    return seen, messages, dist.is_initialized()


def test_raygpu_s_own_messages_go_on_meanwhile() -> None:
    assert on_ranks(2, hidden) == [(False, [0, 1], True)] * 2


def test_without_a_group_nothing_is_hidden() -> None:
    with group_hidden():
        assert not dist.is_initialized()
    assert not dist.is_initialized()
