"""Metrics of a model that is evaluated in mixed precision."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.full_precision import with_each
from raygpu.training.torch.solo import TorchSolo

CPU = torch.device("cpu")
KINDS: list[tuple[torch.dtype, torch.dtype]] = []
"""Types of the outputs of losses and of the products of metrics."""


class Retrieval(TorchExperiment):
    """Outputs beside a hidden layer, whose products are a metric."""

    by_numpy = False

    def data(self) -> Splits:
        x = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
        return Splits.of(x, (x[:, 0] > 0).astype(np.int64), validation=0.5)

    def model(self, hp: Any) -> nn.Module:
        return nn.Linear(4, 2)

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.kind = (outputs @ outputs.T).dtype
        return nn.functional.cross_entropy(outputs, targets)

    def metrics(self, outputs: Any, targets: Any) -> Any:
        product = outputs @ outputs.T
        KINDS.append((self.kind, product.dtype))
        return {"product": float(product.mean()) if self.by_numpy else product.mean()}


class ByNumpy(Retrieval):
    by_numpy = True


@pytest.mark.parametrize("kind", [Retrieval, ByNumpy])
def test_metrics_are_in_full_precision_alone_and_in_an_array(kind: type[Retrieval]) -> None:
    experiment, trial, settings = kind(), Trial("t0", 0, {"lr": 0.1}), Settings(1, 1, "bf16", Path())
    splits = experiment.data()
    solo = TorchSolo(experiment, splits, trial, settings, CPU)
    array = TorchArray(experiment, splits, [trial, Trial("t1", 1, {"lr": 0.1})], settings, width=2, device=CPU)
    KINDS.clear()
    alone, fused = solo.evaluate(), array.run_epoch()
    assert KINDS[0] == (torch.bfloat16, torch.float32)
    assert {product for _, product in KINDS} == {torch.float32}
    outputs = solo.model(torch.from_numpy(splits.validation_inputs).bfloat16().float())
    assert alone["product"] == pytest.approx((outputs @ outputs.T).mean().item(), rel=0.02)
    assert fused is not None


@dataclass
class Outputs:
    scores: torch.Tensor
    hidden: torch.Tensor = field(init=False)


def test_outputs_may_lack_a_field_that_is_not_set() -> None:
    outputs = with_each(Outputs(torch.ones(2, dtype=torch.bfloat16)), torch.Tensor.float)
    assert outputs.scores.dtype == torch.float32
    assert not hasattr(outputs, "hidden")
