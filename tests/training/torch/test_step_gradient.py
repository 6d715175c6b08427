"""The gradient of a step from the losses of parts: kinds of gradients and of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.step_gradient import StepGradient
from tests.training.distributed.parts import parameters, training
from tests.training.distributed.test_micro_batch_check import Lazy

CPU = torch.device("cpu")


def test_an_optimizer_of_sparse_gradients_trains_on_one_device_as_a_trial_does() -> None:
    own = training(Lazy(), Lazy().data(), {"batch_size": 30}, ParallelSettings(30))
    settings = Settings(2, 1, "float32", Path())
    solo = TorchSolo(Lazy(), Lazy().data(), Trial("t0000", 3, {"batch_size": 30}), settings, own.solo.device)
    for step in (own.advance, solo.run_epoch):
        while step() is not None:
            pass
    assert all(torch.equal(a, b) for a, b in zip(parameters(own), solo.model.parameters(), strict=True))


def gradient(share: float, dtype: torch.dtype, losses: Any) -> torch.Tensor:
    """The gradient of a batch of four samples in two parts."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0], dtype=dtype))
    step = StepGradient([weight], CPU)
    step.begin(4, share)
    for number, loss in enumerate(losses(weight)):
        step.add(loss, 2, last=number == 1)
    step.end()
    assert weight.grad is not None
    return weight.grad


def test_a_share_is_part_of_the_loss_before_its_gradient_is_computed() -> None:
    seen = []

    def losses(weight: Any) -> list[torch.Tensor]:
        """Two equal means over samples, of which the gradient is noted on its way back."""
        found = [weight.sum() * 1.0 for _ in range(2)]
        for each in found:
            each.register_hook(seen.append)
        return found

    assert gradient(0.3, torch.float64, losses).tolist() == pytest.approx([0.3, 0.3])
    assert [float(each) for each in seen] == pytest.approx([0.15, 0.15])


def test_sparse_and_dense_gradients_of_parts_are_added() -> None:
    layer = nn.Embedding(4, 2, sparse=True)
    step = StepGradient([layer.weight], CPU)
    step.begin(4)
    step.add(layer(torch.tensor([1, 1])).sum(), 2, last=False)
    with step.set_aside():
        loss = layer.weight.sum()
    step.add(loss, 2, last=True)
    step.end()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[0.5, 0.5], [1.5, 1.5], [0.5, 0.5], [0.5, 0.5]]
