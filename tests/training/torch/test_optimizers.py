"""Each optimizer takes torch.optim's own steps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from raygpu.training.fused.optimizers import ArrayOptimizer
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.optimizers import Optimizer

CASES = [
    ({"optimizer": "sgd", "lr": 0.1}, torch.optim.SGD, {}),
    ({"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9}),
    (
        {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        torch.optim.SGD,
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    ),
    ({"optimizer": "adam", "lr": 0.01}, torch.optim.Adam, {}),
    (
        {"optimizer": "adam", "lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1},
        torch.optim.Adam,
        {"betas": (0.8, 0.9), "eps": 1e-4, "weight_decay": 0.1},
    ),
    ({"optimizer": "adamw", "lr": 0.01}, torch.optim.AdamW, {}),
    ({"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.2}, torch.optim.AdamW, {"weight_decay": 0.2}),
]


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_steps_equal_torch_optim(hp: dict, reference: type, options: dict) -> None:
    torch.manual_seed(0)
    ours = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    theirs = copy.deepcopy(ours)
    own = Optimizer(OptimizerSettings.of(hp), ours.parameters())
    other = reference(theirs.parameters(), lr=hp["lr"], **options)
    for step in range(12):
        x = torch.randn(16, 5, dtype=torch.float64)
        other.zero_grad()
        for model in (ours, theirs):
            (model(x) ** 2).mean().backward()
        other.step()
        own.step(hp["lr"])
        if step == 5:  # go on from a saved state
            state = copy.deepcopy(own.state_dict())
            own = Optimizer(OptimizerSettings.of(hp), ours.parameters())
            own.load_state_dict(state)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)


def test_parameters_without_a_gradient_stay() -> None:
    frozen, unused = nn.Linear(2, 2), nn.Linear(2, 2)
    frozen.requires_grad_(False)
    optimizer = Optimizer(OptimizerSettings.of({"momentum": 0.9}), [*frozen.parameters(), *unused.parameters()])
    before = [p.clone() for p in unused.parameters()]
    optimizer.step(0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, unused.parameters(), strict=True))


@pytest.mark.parametrize(("hp", "reference", "options"), CASES)
def test_complex_parameters(hp: dict, reference: type, options: dict) -> None:
    torch.manual_seed(0)
    ours = torch.randn(3, dtype=torch.complex128, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    stacked = {"p": torch.stack([ours.detach(), ours.detach()])}
    settings = OptimizerSettings.of(hp)
    own, array = Optimizer(settings, [ours]), ArrayOptimizer([settings, settings])
    other = reference([theirs], lr=hp["lr"], **options)
    buffers, numbers = array.new_buffers(stacked), array.numbers([settings, settings], 1, 4, 1)
    for step in range(4):
        gradient = torch.randn(3, dtype=torch.complex128)
        ours.grad, theirs.grad = gradient.conj().resolve_conj().conj(), gradient.clone()
        own.step(hp["lr"])
        other.step()
        array.step(stacked, {"p": torch.stack([gradient, gradient])}, buffers, numbers[step])
        assert torch.allclose(ours, theirs, rtol=1e-12)
        assert torch.allclose(stacked["p"][1], theirs, rtol=1e-12)
