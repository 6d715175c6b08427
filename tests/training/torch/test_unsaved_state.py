"""What a lambda over the model changes is held by a checkpoint where it is a persistent buffer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from raygpu.training.torch.unsaved_state import unsaved
from tests.models import Mlp


class Tracked(nn.Module):
    """A layer whose inputs' mean is moved by a lambda over the module itself."""

    def __init__(self, *, persistent: bool) -> None:
        super().__init__()
        self.last = nn.Linear(4, 2)
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)
        self.track = lambda x: self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the outputs of centred inputs."""
        if self.training:
            self.track(x)
        return self.last(x - self.mean)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_a_lambda_moves(*, persistent: bool) -> None:
    model, inputs = Tracked(persistent=persistent), torch.arange(24.0).reshape(6, 4)

    def step(experiment: Any, model: nn.Module, place: int) -> Any:
        return model(inputs[3 * place : 3 * place + 3]).square().mean()

    line = unsaved(model, Mlp(), model.state_dict(), step, lambda experiment, model: None)
    assert (line is None) if persistent else ("mean changes while it trains" in str(line))
