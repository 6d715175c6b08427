"""One rank's part of a training, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from raygpu.experiment import Splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings, Ranks
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.distributed.torch_sharded import TorchSharded, UnplacedSolo
from raygpu.training.torch.solo import TorchSolo
from tests.torch_device import DEVICE


def training(
    experiment: Any,
    splits: Splits,
    hp: Mapping[str, Any],
    parallel: ParallelSettings,
    ranks: Ranks | None = None,
    *,
    epochs: int = 2,
    dtype: torch.dtype | None = None,
    precision: Any = "float32",
    request: Callable[[], Any] = lambda: "",
) -> TorchParallel:
    """One rank's part of a training, by default of the only one."""
    settings = Settings(epochs=epochs, threads=1, precision=precision, folder=Path())
    ranks = ranks or OneRank()
    trial = Trial("t0000", 3, hp)
    solo = TorchSolo(experiment, splits, trial, settings, dtype=dtype, optimizer_settings=parallel.optimizer_settings)
    return TorchParallel(solo, parallel, ranks, request=request)


def sharded(
    experiment: Any,
    splits: Splits,
    hp: Mapping[str, Any],
    parallel: ParallelSettings,
    ranks: Any,
    *,
    epochs: int = 2,
    dtype: torch.dtype | None = None,
    precision: Any = "float32",
    request: Callable[[], Any] = lambda: "",
) -> TorchSharded:
    """One rank's part of a training whose model is sharded."""
    settings = Settings(epochs=epochs, threads=1, precision=precision, folder=Path())
    chosen = parallel.optimizer_settings
    solo = UnplacedSolo(experiment, splits, Trial("t0000", 3, hp), settings, DEVICE, dtype, optimizer_settings=chosen)
    return TorchSharded(solo, parallel, ranks, request=request)


def gradient(training: TorchParallel) -> list[torch.Tensor]:
    """Of the next optimizer step, which is not taken."""
    taken: list[torch.Tensor] = []

    def take(lr: float) -> None:
        for parameter in training.solo.optimizer.parameters:
            if parameter.grad is not None:
                taken.append(parameter.grad.clone())
            parameter.grad = None

    training.solo.optimizer.step = take  # type: ignore[method-assign]
    training.take_steps(1)
    return taken


def parameters(training: TorchParallel) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training.solo.model.parameters()]
