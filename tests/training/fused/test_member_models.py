"""A structure or number that a model draws by the seed is compared between all members of an array."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional

from raygpu.training.base import NotAsAlone
from raygpu.training.fused.model_array import TorchArray
from tests.models import few
from tests.training.fused.alike import members, settings
from tests.training.fused.refusals import Head, Of

RARE = 0.2
made = count()


def is_rare() -> bool:
    """Draw by the member's seed; true for few of them."""
    return bool(torch.rand(()) < RARE)


class Chosen(Head):
    """A number, a text, a tuple or a function decides on what the code computes."""

    def __init__(self, usual: object, rare: object) -> None:
        super().__init__()
        self.choice = rare if is_rare() else usual


def frozen() -> nn.Module:
    model = Head()
    model.first.weight.requires_grad_(not is_rare())
    return model


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(64, 10), nn.Linear(10, 10), nn.Linear(10, 10))
    if is_rare():
        model[2].weight = model[1].weight
    return model


def enclosed() -> nn.Module:
    skips = is_rare()

    class Local(Head):
        """Is defined by each call."""

        def inside(self, x: torch.Tensor) -> torch.Tensor:
            return x if skips else x.tanh()

    return Local()


def array(make: Callable[[], nn.Module], num_members: int = 40) -> TorchArray:
    trials = members({}, [{"lr": 0.01 * (i + 1)} for i in range(num_members)])
    return TorchArray(Of(lambda hp: make()), few(), trials, settings(1), device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: nn.Sequential(nn.Linear(64, 10), nn.ReLU() if is_rare() else nn.Tanh()), "the module 1"),
        (lambda: nn.Sequential(nn.Linear(64, 10), *[nn.Tanh()] * is_rare()), "the (module 1|parameter 0.weight)"),
        (lambda: nn.Linear(64, 10, bias=not is_rare()), "the parameter bias"),
        (frozen, "the parameter first.weight"),
        (tied, "the parameter 2.weight"),
        (lambda: Chosen(0.5, 0.25), "Chosen.choice"),
        (lambda: Chosen("gelu", "relu"), "Chosen.choice"),
        (lambda: Chosen((1, 2), (1, 3)), "Chosen.choice"),
        (lambda: Chosen([torch.relu], [functional.gelu]), "Chosen.choice"),
        (lambda: Chosen(lambda x: 2 * x, lambda x: 3 * x), "Chosen.choice"),
        (enclosed, "the variable skips"),
    ],
)
def test_what_few_members_draw_is_refused_by_name(make: Callable[[], nn.Module], path: str) -> None:
    with pytest.raises(NotAsAlone, match=f"^{path} differs between trials, as t0000 and t00"):
        array(make)


class Numbered(Head):
    """Counts the models of the process, and has a generator by the seed, and a class that each call defines."""

    def __init__(self) -> None:
        super().__init__()
        self.number = next(made)
        self.generator = torch.Generator().manual_seed(torch.initial_seed())


def defined() -> nn.Module:
    class Local(Numbered):
        """Is defined by each call."""

    return Local()


@pytest.mark.parametrize("make", [Head, Numbered, defined])
def test_what_no_seed_draws_is_no_obstacle(make: Callable[[], nn.Module]) -> None:
    assert len(array(make, 4).trials) == 4
