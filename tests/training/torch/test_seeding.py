"""Random numbers of a training that do not depend on the moment at which something is made."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.torch.seeding import own_draws, seed_all
from tests.models import Mlp, few
from tests.training.distributed.parts import training
from tests.training.fused.alike import difference, parameters


class Drawing(Mlp):
    """Has dropout, and an optimizer whose making draws random numbers."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.3), nn.Linear(64, 10))

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        drawn = float(torch.rand(())) + random.random() + float(np.random.rand())
        return torch.optim.SGD(model.parameters(), lr=0.02 + 0.02 * drawn)


def test_an_optimizer_that_draws_when_it_is_made_is_the_same_in_production() -> None:
    """A sweep makes it within the first epoch, production before."""
    hp = {"batch_size": 16}
    alone = training(Drawing(), few(), hp, ParallelSettings(16)).solo
    while alone.run_epoch() is not None:
        pass
    whole = training(Drawing(), few(), hp, ParallelSettings(16), OneRank())
    while whole.advance() is not None:
        pass
    assert whole.solo.optimizer.own_lr == alone.optimizer.own_lr
    assert difference(parameters(whole.solo.model), parameters(alone.model)) == 0


def test_what_draws_by_itself_leaves_the_generators_as_they_are() -> None:
    seed_all(3)
    wanted = float(torch.rand(())), random.random(), float(np.random.rand())
    seed_all(3)
    with own_draws(1, 2):
        first = float(torch.rand(())), random.random(), float(np.random.rand())
    assert (float(torch.rand(())), random.random(), float(np.random.rand())) == wanted
    with own_draws(1, 2):
        assert (float(torch.rand(())), random.random(), float(np.random.rand())) == first
