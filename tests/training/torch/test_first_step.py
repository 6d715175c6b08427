"""The first step of an experiment: a loss that compares each sample with each is told from one that is random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.training.torch.first_step import first_result

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)


class Regression(TorchExperiment):
    """Its targets are (batch,), and its outputs (batch, 1)."""

    missing = 0

    def data(self) -> Splits:
        targets = X[:, 0].copy()
        targets[: self.missing] = np.nan
        return Splits(X, targets, X[:8], targets[:8])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Linear(4, 1)

    def loss(self, outputs: Any, targets: Any) -> Any:
        return ((outputs.squeeze(-1) - targets.reshape(-1)) ** 2).mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {}


class Noisy(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets.reshape(-1) + 0.1 * torch.randn(len(targets)))


class Missing(Regression):
    missing = 2


class EachWithEach(Regression):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return (outputs - targets).square().mean()


@pytest.mark.parametrize("kind", [Regression, Noisy, Missing])
def test_losses_that_compare_sample_by_sample(kind: type[Regression]) -> None:
    result, _ = first_result(kind(), kind().data(), {})
    assert "train/loss" in result.metrics


def test_a_loss_that_compares_each_with_each_is_refused() -> None:
    with pytest.raises(ValueError, match="compares each with each"):
        first_result(EachWithEach(), EachWithEach().data(), {})
