"""A short training takes a batch as `raygpu train` takes it: in as many parts, each of as many samples as the model
needs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raygpu.config import BalanceConfig, TrainConfig
from raygpu.engines.profiling.short_trainings import ShortTrainings
from raygpu.engines.profiling.workload import Workload
from raygpu.experiment import Splits
from raygpu.planning.worker_devices import WorkerDevices
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.distributed.batch_split import spread
from raygpu.training.distributed.coordinator import Coordinator
from raygpu.training.distributed.ranks import ParallelSettings

TWO = WorkerDevices(2, 1, 1, 1.0, 1.0, "gloo", False, False)
X = np.zeros((100, 1), np.float32)


def short(config: TrainConfig, least: int = 1) -> ShortTrainings:
    source: Any = SimpleNamespace(kind="torch")
    workload = Workload(source, Splits(X, X, X, X), Trial("t", 0, config.hyperparameters), "float32")
    cluster: Any = SimpleNamespace(travelled=lambda source: source, places=lambda: ())
    return ShortTrainings(config, workload, cluster, TWO, Storage("nowhere"), print, least)


def local_sizes(parallel: ParallelSettings) -> list[list[int]]:
    ranks: Any = SimpleNamespace(rank=0, local=1, world=2)
    return [each.sizes for each in Coordinator(parallel, ranks).local_batches(0, parallel.global_batch)]


def parallel(trainings: ShortTrainings, shares: tuple[int, ...]) -> ParallelSettings:
    """Of a turn, as its workers have them."""
    settings = trainings._task(sum(shares)).parallel
    assert settings is not None
    return ParallelSettings(**{name: getattr(settings, name) for name in settings.__slots__} | {"ratios": shares})


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_share_is_taken_in_the_parts_of_raygpu_train(accumulate: int) -> None:
    hp = {"batch_size": 32, "micro_batch_size": 8, "lr": 0.1}
    values: dict[str, Any] = {"experiment": "a:B", "metric": "loss", "accumulate": accumulate, "hyperparameters": hp}
    config = BalanceConfig.model_validate(values | {"lr_scaling": "linear"})
    balanced = TrainConfig.model_validate(values | {"ratios": "40,24", "global_batch": 64})
    short_parallel = parallel(short(config), (40, 24))
    assert local_sizes(short_parallel) == local_sizes(spread(balanced, 2, 100).parallel) == [[8] * 5, [5, 5, 5, 5, 4]]
    assert short_parallel.optimizer_settings is not None
    assert short_parallel.optimizer_settings.lr == 0.1, "a short training has no time to rise to a scaled one"


def test_a_batch_may_be_larger_than_an_epoch_and_ratios_may_be_automatic() -> None:
    config = BalanceConfig(experiment="a:B", metric="loss", ratios="auto", hyperparameters={"batch_size": 8})
    settings = parallel(short(config), (300, 200))
    assert (settings.global_batch, settings.auto_shares) == (500, False)
    assert local_sizes(settings) == [[300], [200]]


def test_no_share_is_smaller_than_the_model_needs() -> None:
    config = BalanceConfig(experiment="a:B", metric="loss", hyperparameters={"batch_size": 8})
    assert local_sizes(parallel(short(config, least=2), (15, 1))) == [[14], [2]]
