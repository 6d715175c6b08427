"""Epochs that are no pass over the data: the same in every way of training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from raygpu import Splits, dataset_splits
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference, parameters

EPOCHS = 5
HP = {"hidden": 8, "batch_size": 32, "lr": 0.1, "momentum": 0.9}
SETTINGS = Settings(EPOCHS, 1, "float32", Path())


def read(splits: Splits) -> Splits:
    """The same data as samples that are read."""
    pairs = ((splits.train_inputs, splits.train_targets), (splits.validation_inputs, splits.validation_targets))
    return dataset_splits(*(list(zip(*pair, strict=True)) for pair in pairs), cache=False)


@pytest.mark.parametrize("per_epoch", [90, 500])
def test_an_array_and_production_train_as_one_alone(per_epoch: int) -> None:
    splits = replace(few(), per_epoch=per_epoch)
    solo = TorchSolo(Mlp(), splits, Trial("t0000", 3, HP), SETTINGS, DEVICE, torch.float64)
    wanted = [result.metrics for result in iter(solo.run_epoch, None)]
    trials = [Trial("t0000", 3, HP), Trial("t0001", 4, HP)]
    array = TorchArray(Mlp(), splits, trials, SETTINGS, device=DEVICE, dtype=torch.float64)
    fused = [results["t0000"].metrics for results in iter(array.run_epoch, None)]
    assert fused == [pytest.approx(metrics, rel=1e-9) for metrics in wanted]
    other = TorchSolo(Mlp(), splits, Trial("t0000", 3, HP), SETTINGS, DEVICE, torch.float64)
    parallel = TorchParallel(other, ParallelSettings(32, optimizer_settings=OptimizerSettings.of(HP)), OneRank())
    results = [progress.result for progress in iter(parallel.advance, None) if progress.result is not None]
    assert [result.metrics for result in results] == [pytest.approx(metrics, rel=1e-9) for metrics in wanted]
    assert {result.num_samples for result in results} == {per_epoch}
    assert difference(parameters(parallel.solo.model), parameters(solo.model)) <= EXACT


def test_samples_that_are_read_go_through_the_passes() -> None:
    """Epochs of a quarter of a pass end where those of half a pass end."""
    splits = read(few().first(128))
    ended = []
    for data, epochs in ((replace(splits, per_epoch=64), 4), (replace(splits, per_epoch=32), 8)):
        settings = Settings(epochs, 1, "float32", Path())
        solo = TorchSolo(Mlp(), data, Trial("t0000", 3, HP), settings, DEVICE, torch.float64)
        for _ in range(epochs):
            solo.run_epoch()
        ended.append(parameters(solo.model))
        solo.close()
    assert difference(ended[1], ended[0]) <= EXACT
