"""Modes of torch functions in the forward passes of an array: norms in mixed precision, and elements of equal value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.vmap_modes import NormalizationInFloat32, TiedExtremes
from raygpu.training.torch.solo import TorchSolo
from tests.models import few

NORMS: dict[str, Any] = {
    "batch": nn.BatchNorm2d,
    "batch without a scale": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "batch without statistics": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "instance": lambda channels: nn.InstanceNorm2d(channels, affine=True, track_running_stats=True),
    "instance without statistics": lambda channels: nn.InstanceNorm2d(channels, affine=True),
    "group": lambda channels: nn.GroupNorm(2, channels),
    "layer": lambda channels: nn.LayerNorm([channels, 8, 8]),
    "root mean square": lambda channels: nn.RMSNorm([channels, 8, 8]),
}


class Normed(TorchExperiment):
    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 4, 3, padding=1), NORMS[hp["norm"]](4), nn.ReLU()]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


@pytest.mark.parametrize("function", [functional.batch_norm, functional.instance_norm])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_norms_of_two_dtypes_compute_in_float32(function: Any, half: torch.dtype) -> None:
    inputs = torch.randn(8, 3, 5).to(half)
    seen: list[torch.dtype] = []

    class Noted(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.extend(args[0].dtype for norm in NormalizationInFloat32.NORMS if func is norm)
            return func(*args, **(kwargs or {}))

    def normed(inputs: torch.Tensor, statistics: torch.Tensor) -> torch.Tensor:
        return function(inputs, statistics.clone(), statistics.clone() + 1, statistics + 2, statistics)

    with Noted(), NormalizationInFloat32():
        found = normed(inputs, torch.zeros(3))
        same = normed(inputs, torch.zeros(3, dtype=half))
    assert set(seen[: len(seen) // 2]) == {torch.float32}
    assert set(seen[len(seen) // 2 :]) == {half}, "one dtype alone is left as it is"
    assert found.dtype == same.dtype == half
    assert torch.equal(found, normed(inputs.float(), torch.zeros(3)).to(half))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("norm", NORMS)
def test_members_with_norms_equal_trainings_alone_on_a_gpu(norm: str, compiled: bool, precision: Any) -> None:
    experiment, settings = Normed(), Settings(2, 1, precision, Path())
    trials = [Trial(f"t{i}", i, {"norm": norm, "lr": 0.02 * (i + 1), "batch_size": 16}) for i in range(3)]
    array = TorchArray(experiment, few(), trials, settings)
    if compiled:
        array.program.compile(3, array.batch_size)
    array.run_epoch()
    found = array.run_epoch()
    assert found is not None
    for trial in trials:
        solo = TorchSolo(experiment, few(), trial, settings)
        solo.run_epoch()
        alone = solo.run_epoch()
        assert alone is not None
        for name in ("train/loss", "validation/loss"):
            assert found[trial.trial_id].metrics[name] == pytest.approx(alone.metrics[name], rel=0.02)


WHOLE = [torch.max, torch.min, torch.median, torch.nanmedian, torch.Tensor.max, torch.Tensor.nanmedian]
TIED = [
    torch.tensor([[3.0, 1, 3, 1, 2, 2], [5, 5, 5, 5, 5, 5], [0, 1, 2, 3, 4, 5]]),
    torch.tensor([[torch.inf, torch.inf, -torch.inf, -torch.inf, 0, 0], [torch.nan, 1, torch.nan, 1, 2, 3]]),
    torch.ones(2),
]


@pytest.mark.parametrize("function", WHOLE)
@pytest.mark.parametrize("rows", TIED, ids=["finite", "not finite", "numbers"])
def test_tied_elements_share_a_gradient(function: Any, rows: torch.Tensor) -> None:
    alone = [row.clone().requires_grad_() for row in rows]
    wanted = torch.stack([function(row) for row in alone])
    wanted.sum().backward()
    mapped = rows.clone().requires_grad_()
    with TiedExtremes():
        found = torch.vmap(function)(mapped)
    found.sum().backward()
    torch.testing.assert_close(found, wanted, equal_nan=True, rtol=0, atol=0)
    shares = torch.stack([row.grad for row in alone if row.grad is not None])
    assert mapped.grad is not None
    torch.testing.assert_close(mapped.grad[~rows.isnan()], shares[~rows.isnan()])


@pytest.mark.parametrize("function", [torch.max, torch.min, torch.median])
def test_a_value_that_is_no_number_spoils_no_gradient(function: Any) -> None:
    def loss(row: torch.Tensor) -> torch.Tensor:
        return function(row).nan_to_num() + 2 * row[0]

    rows = torch.tensor([[1.0, torch.nan, 2, 2], [3, 3, 0, 0]])
    alone = [row.clone().requires_grad_() for row in rows]
    for row in alone:
        loss(row).backward()
    mapped = rows.clone().requires_grad_()
    with TiedExtremes():
        torch.vmap(loss)(mapped).sum().backward()
    torch.testing.assert_close(mapped.grad, torch.stack([row.grad for row in alone if row.grad is not None]))


def test_other_calls_and_a_map_of_the_models_own_stay_as_they_are() -> None:
    whole_numbers, tied = torch.tensor([[1, 3, 3]]), torch.ones(2, 4, 3)
    gradient = torch.func.grad(lambda x: torch.vmap(torch.max)(x).sum())
    with TiedExtremes() as mode:
        assert tied.max(1).indices.shape == (2, 3)
        assert torch.equal(torch.max(tied, tied), tied)
        assert not mode.has_met_one
        assert torch.vmap(torch.max)(whole_numbers).tolist() == [3]
        assert mode.has_met_one
        found = torch.vmap(gradient)(tied)
    assert torch.equal(found, torch.stack([gradient(each) for each in tied]))


class WorstError(TorchExperiment):
    """Adds the largest error of a batch, cut off at 3; in few batches several errors are larger."""

    def data(self) -> Splits:
        generator = np.random.default_rng(1)
        inputs = generator.normal(size=(320, 6)).astype(np.float32)
        targets = 0.5 * inputs[:, 0]
        targets[-24:] = 9.0 * np.sign(inputs[-24:, 1])
        return Splits(inputs, targets, inputs[:50], targets[:50])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(6, 1)

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        error = (outputs[:, 0] - targets).abs()
        return error.mean() + torch.where(error > 3, 3 + (error - error.detach()), error).max()

    def metrics(self, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}


def test_members_with_tied_elements_equal_trainings_alone() -> None:
    trials = [Trial(f"t{i}", i, {"lr": 0.02 * (i + 1), "batch_size": 16}) for i in range(3)]
    settings, splits = Settings(2, 1, "float32", Path()), WorstError().data()
    array = TorchArray(WorstError(), splits, trials, settings)
    array.audits = False
    found = [array.run_epoch() for _ in range(2)][1]
    assert found is not None
    for trial in trials:
        solo = TorchSolo(WorstError(), splits, trial, settings)
        alone = [solo.run_epoch() for _ in range(2)][1]
        assert alone is not None
        assert found[trial.trial_id].metrics == pytest.approx(alone.metrics, rel=1e-4)
