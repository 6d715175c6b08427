"""An evaluation that memory does not hold begins anew with smaller batches, and comes to the same means."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.config.source import Source
from raygpu.experiment import Splits
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.model_scores import model_scores
from raygpu.training.torch.evaluation_batch import SMALLER
from tests.models import Mlp, few
from tests.training.distributed.parts import training
from tests.training.fused.alike import SGD, members, new_array, run, solo

LINE = SMALLER.format(before=32, now=8)
OF_TORCH = torch.OutOfMemoryError("out of memory")
OF_CUBLAS = RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


class Memory(nn.Module):
    """Holds the outputs of so many samples in an evaluation."""

    def __init__(self, most: int, error: Exception) -> None:
        super().__init__()
        self.most = most
        self.error = error
        self.sizes: list[int] = []
        """Numbers of samples that were evaluated at once."""
        self.layer = nn.Linear(64, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.sizes.append(len(inputs))
            if len(inputs) > self.most:
                raise self.error
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


class Small(Mlp):
    """Trained on a device of little memory."""

    def __init__(self, most: int, error: Exception = OF_TORCH) -> None:
        self.most = most
        self.error = error

    def data(self) -> Splits:
        return few(50, 32)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Memory(self.most, self.error)


@pytest.mark.parametrize("error", [OF_TORCH, OF_CUBLAS])
def test_smaller_batches_have_the_same_means_and_stay(error: Exception) -> None:
    (trial,) = members({}, SGD[:1])
    small, large = (solo(Small(most, error), trial, torch.float64, 2) for most in (9, 1000))
    for result, wanted in zip(run(small, 2), run(large, 2), strict=True):
        assert dict(result.metrics) == pytest.approx(dict(wanted.metrics), rel=1e-12)
    assert small.model.sizes == [32, 16, 8, 8, 8, 8, 8, 8, 8, 8]
    assert small.notes == [LINE]
    assert large.notes == []


def test_a_sample_that_memory_does_not_hold_is_out_of_memory() -> None:
    (trial,) = members({}, SGD[:1])
    with pytest.raises(torch.OutOfMemoryError):
        solo(Small(0), trial, None).run_epoch()


def test_an_array_of_one_member_at_once_takes_smaller_batches() -> None:
    """A wider one raises, and goes on at half its width: its members have the batches of the trials alone."""
    trials = members({}, SGD[:2])
    array = new_array(Small(9), trials, epochs=2, width=1)
    results = run(array, 2)
    for trial in trials:
        for result, wanted in zip(results, run(solo(Small(1000), trial, torch.float64, 2), 2), strict=True):
            assert dict(result[trial.trial_id].metrics) == pytest.approx(dict(wanted.metrics), rel=1e-6)
    assert array.notes == [LINE]
    assert array.trial_evaluation(1) == (32, 32)
    with pytest.raises(torch.OutOfMemoryError):
        new_array(Small(9), trials, width=2).run_epoch()


def test_a_score_on_test_data_tells_of_it(tmp_path: Path) -> None:
    (trial,) = members({}, SGD[:1])
    solo(Small(9), trial, None).save(tmp_path)
    lines: list[str] = []
    source = Source("torch", "small:Small", str(tmp_path))
    model_scores(source, Small(9), few(50, 32), trial, tmp_path, Settings(1, 1, "float32", tmp_path), lines.append)
    assert lines == [LINE]


def test_production_tells_of_it() -> None:
    experiment = Small(9)
    whole = training(experiment, experiment.data(), {"lr": 0.1, "batch_size": 10}, ParallelSettings(10), OneRank())
    assert not whole.notes
    while whole.advance() is not None:
        pass
    assert whole.notes == [LINE]
