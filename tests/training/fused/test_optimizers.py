"""Each member of an array takes torch.optim's own steps, whatever the settings of its neighbours."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from raygpu.training.fused.optimizers import ArrayOptimizer
from raygpu.training.fused.tile import Stacked
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.optimizers import BuiltinOptimizer

STEPS = 12
LEFT_TO_TORCH = ("optimizer", "clip_norm")
PLAIN_SGD: list[dict[str, Any]] = [{"lr": 0.1}, {"lr": 0.03}]
SGD: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.05, "momentum": 0.9},
    {"lr": 0.02, "momentum": 0.8, "nesterov": True},
    {"lr": 0.1, "weight_decay": 0.1, "clip_norm": 0.05},
    {"lr": 0.03, "momentum": 0.5, "nesterov": True, "weight_decay": 0.01, "clip_norm": 0.2},
    {"lr": 0.1, "clip_norm": 1e6},
]
ADAM: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.003, "weight_decay": 0.1},
    {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-3},
    {"lr": 0.02, "betas": (0.5, 0.99), "clip_norm": 0.05},
    {"lr": 0.02, "weight_decay": 0.02, "eps": 1e-2, "clip_norm": 1e6},
]
CASES = [
    ("sgd", PLAIN_SGD),
    ("sgd", [{**hp, "weight_decay": 0.1 * i} for i, hp in enumerate(PLAIN_SGD)]),
    ("sgd", [{**hp, "momentum": 0.9} for hp in PLAIN_SGD]),
    ("sgd", SGD),
    ("adam", [{"lr": 0.01}, {"lr": 0.03}]),
    ("adam", ADAM),
    ("adamw", [{"lr": 0.01, "weight_decay": 0.0}, {"lr": 0.03, "weight_decay": 0.0}]),
    ("adamw", ADAM),
]
REFERENCES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()


def stacked(models: list[nn.Module]) -> Stacked:
    parts = [dict(model.named_parameters()) for model in models]
    return {name: torch.stack([part[name].detach() for part in parts]) for name in parts[0]}


@pytest.mark.parametrize(("kind", "own"), CASES, ids=[f"{kind}-{i}" for i, (kind, _) in enumerate(CASES)])
def test_steps_equal_torch_optim(kind: str, own: list[dict[str, Any]]) -> None:
    torch.manual_seed(0)
    models = [network() for _ in own]
    references = [
        REFERENCES[kind](model.parameters(), **{name: value for name, value in hp.items() if name not in LEFT_TO_TORCH})
        for model, hp in zip(models, own, strict=True)
    ]
    settings = [OptimizerSettings.of({"optimizer": kind, **hp}) for hp in own]
    optimizer = ArrayOptimizer(settings)
    parameters = stacked(models)
    before = copy.deepcopy(parameters)
    buffers = optimizer.new_state(parameters, {})
    base = copy.deepcopy(models[0])

    def loss(state: Stacked, x: torch.Tensor) -> torch.Tensor:
        return (functional_call(base, state, (x,)) ** 2).mean()

    clipped = set()
    for epoch in (1, 2, 3):
        numbers = optimizer.numbers(settings, epoch, STEPS // 3, 3)
        for number in range(STEPS // 3):
            x = torch.randn(len(own), 16, 5, dtype=torch.float64)
            for i, (model, reference) in enumerate(zip(models, references, strict=True)):
                reference.zero_grad()
                (model(x[i]) ** 2).mean().backward()
                if "clip_norm" in own[i]:
                    norm = nn.utils.clip_grad_norm_(model.parameters(), own[i]["clip_norm"])
                    clipped |= {i} if norm > own[i]["clip_norm"] else set()
                reference.step()
            optimizer.step(parameters, vmap(grad(loss))(parameters, x), buffers, numbers[number])
    assert clipped == {i for i, hp in enumerate(own) if hp.get("clip_norm", 1e6) < 1}
    for name, expected in stacked(models).items():
        torch.testing.assert_close(parameters[name], expected, rtol=1e-12, atol=1e-14)
        moved = (parameters[name] - before[name]).abs().flatten(1).amax(1)
        assert bool((moved > 1e-4).all()), name


SCHEDULES: list[dict[str, Any]] = [
    {"lr": 0.5},
    {"lr": 0.4, "schedule": "cosine"},
    {"lr": 0.3, "schedule": "step", "step_epochs": 1.5, "gamma": 0.5},
    {"lr": 0.2, "warmup_epochs": 1.5},
    {"lr": 0.1, "schedule": "cosine", "warmup_epochs": 2},
    {"lr": 0.7, "schedule": "step", "step_epochs": 2, "warmup_epochs": 0.5},
    {"lr": 0.6, "schedule": "cosine", "warmup_epochs": 9},
]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_learning_rates_are_those_of_a_training_alone(kind: str) -> None:
    steps_per_epoch, epochs = 7, 4
    settings = [OptimizerSettings.of({"optimizer": kind, "weight_decay": 0.1, **hp}) for hp in SCHEDULES]
    optimizer = ArrayOptimizer(settings)
    numbers = torch.cat([optimizer.numbers(settings, epoch, steps_per_epoch, epochs) for epoch in range(1, epochs + 1)])
    assert numbers.shape == (steps_per_epoch * epochs, len(optimizer.columns), len(settings))
    assert numbers.dtype == torch.float64
    column = dict(zip(optimizer.columns, numbers.unbind(1), strict=True))
    for place, own in enumerate(settings):
        lrs = np.array([own.lr_at(step, steps_per_epoch, epochs) for step in range(steps_per_epoch * epochs)])
        if kind == "sgd":
            np.testing.assert_array_equal(column["lr"][:, place], lrs)
            continue
        corrections = 1 - 0.9 ** np.arange(1, len(lrs) + 1)
        np.testing.assert_allclose(column["step_size"][:, place].numpy() * corrections, lrs, rtol=1e-12)
        if kind == "adamw":
            np.testing.assert_allclose(column["shrink"][:, place], 1 - 0.1 * lrs, rtol=1e-12)
        else:
            np.testing.assert_array_equal(column["weight_decay"][:, place], np.full(len(lrs), 0.1))


def test_moving_learning_rates_reach_the_steps() -> None:
    """The gradient of a sum is 1: each step moves a member by its learning rate."""
    settings = [OptimizerSettings.of(hp) for hp in SCHEDULES]
    optimizer = ArrayOptimizer(settings)
    weight = {"weight": torch.zeros(len(settings), 3, dtype=torch.float64)}
    ones = {"weight": torch.ones_like(weight["weight"])}
    for epoch in range(1, 5):
        for number, row in enumerate(optimizer.numbers(settings, epoch, 5, 4)):
            before = weight["weight"].clone()
            optimizer.step(weight, ones, [], row)
            lrs = [own.lr_at((epoch - 1) * 5 + number, 5, 4) for own in settings]
            expected = torch.tensor(lrs, dtype=torch.float64)[:, None].expand(-1, 3)
            torch.testing.assert_close(before - weight["weight"], expected, rtol=1e-12, atol=1e-14)


def test_a_neighbours_nan_stays_its_own() -> None:
    for kind in ("sgd", "adam", "adamw"):
        settings = [
            OptimizerSettings.of({"optimizer": kind, "weight_decay": 0.1, "clip_norm": 0.5} | more)
            for more in ({}, {"momentum": 0.9} if kind == "sgd" else {})
        ]
        optimizer = ArrayOptimizer(settings)
        ends = []
        for wild in (1.0, float("nan"), float("inf")):
            parameters = {"a": torch.ones(2, 3), "b": torch.ones(2)}
            buffers = optimizer.new_state(parameters, {})
            gradients = {"a": torch.ones(2, 3), "b": torch.tensor([1.0, wild])}
            for row in optimizer.numbers(settings, 1, 3, 1).float():
                optimizer.step(parameters, gradients, buffers, row)
            ends.append(torch.cat([parameters["a"][0], parameters["b"][:1]]))
            assert bool(parameters["b"][1].isfinite()) is (wild == 1.0)
        assert torch.equal(ends[0], ends[1])
        assert torch.equal(ends[0], ends[2])


def test_members_are_of_one_kind() -> None:
    with pytest.raises(ValueError, match="adam, sgd"):
        ArrayOptimizer([OptimizerSettings(), OptimizerSettings(optimizer="adam")])


def test_what_no_member_uses_costs_nothing() -> None:
    plain = ArrayOptimizer([OptimizerSettings(), OptimizerSettings(lr=0.5)])
    assert plain.program == ("sgd", False, False, False, False, False, False)
    assert plain.new_state({"a": torch.zeros(2, 3)}, {}) == []
    some = ArrayOptimizer([OptimizerSettings(), OptimizerSettings(momentum=0.9, nesterov=True, clip_norm=1.0)])
    assert some.program == ("sgd", True, True, False, True, False, False)
    assert len(some.new_state({"a": torch.zeros(2, 3)}, {})) == 1
    averaged = ArrayOptimizer([OptimizerSettings(), OptimizerSettings(ema_decay=0.9)])
    assert averaged.program == ("sgd", False, False, False, False, True, False)
    assert [
        *averaged.new_state({"a": torch.zeros(2, 3)}, {"b": torch.zeros(2), "c": torch.zeros(2, dtype=int)})[0]
    ] == [
        "a",
        "b",
    ]
    scaled = ArrayOptimizer([OptimizerSettings(), OptimizerSettings(momentum=0.9)], has_loss_scale=True)
    assert scaled.program == ("sgd", True, False, False, False, False, True)
    scales, velocity = scaled.new_state({"a": torch.zeros(2, 3)}, {})
    assert ([*scales], [*velocity]) == (["scale", "growth_tracker", "skipped"], ["a"])
    assert scales["scale"].tolist() == [2.0**16] * 2


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hp", [SGD[1], ADAM[0], {**ADAM[1], "optimizer": "adamw"}])
def test_members_in_half_precision_take_the_steps_of_a_trial_alone(hp: dict[str, Any], half: torch.dtype) -> None:
    """Adam's `eps` is zero in float16, so that its steps would not be finite there."""
    torch.manual_seed(0)
    settings = OptimizerSettings.of({"optimizer": "adam" if hp in ADAM else "sgd", **hp})
    alone = torch.randn(3, 100).to(half).requires_grad_()
    parameters = {"p": torch.stack([alone.detach(), alone.detach()])}
    own, array = BuiltinOptimizer(settings, [alone]), ArrayOptimizer([settings, settings])
    state, numbers = array.new_state(parameters, {}), array.numbers([settings, settings], 1, 6, 1).float()
    for step in range(6):
        gradient = torch.randn(3, 100).to(half) * 1e-3
        alone.grad = gradient.clone()
        own.step(hp["lr"])
        array.step(parameters, {"p": torch.stack([gradient, gradient])}, state, numbers[step])
    rounding = {"rtol": 4 * torch.finfo(half).eps, "atol": 4 * torch.finfo(half).eps}
    torch.testing.assert_close(parameters["p"][1], alone.detach(), **rounding)
