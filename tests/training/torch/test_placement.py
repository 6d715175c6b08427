"""Torch models with parts on several devices: the numbers of one device, the copies in between, and what is refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments.reviews import SHAPE, TwoTowers
from raygpu import Splits, TorchExperiment
from raygpu.errors import BadInput
from raygpu.planning.model_placements import PlacementTurn, alternating
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.placement import TorchPlaced, calls, device_of, require_together, without_shared
from raygpu.training.torch.solo import TorchSolo

CPU = torch.device("cpu")
BATCH, WORDS, LATENT = 16, SHAPE.length, 4
HP = {"optimizer": "adam", "lr": 0.01, "embedding": 4, "filters": 8, "latent": LATENT, "batch_size": BATCH}


class Experiment(TorchExperiment):
    """A model that is given, on random numbers."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def data(self) -> Splits:
        draw = np.random.default_rng(0)
        inputs, targets = draw.standard_normal((64, 5, 8), np.float32), draw.integers(0, 3, 64)
        return Splits(inputs[:48], targets[:48], inputs[48:], targets[48:])

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return self._model


class Attention(nn.Module):
    """Attention, whose inner projection is never called by itself, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.recurrent = nn.LSTM(8, 8, batch_first=True)
        self.last = nn.Sequential(nn.Dropout(0.1), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, _ = self.attention(x, x, x)
        y, (state, _) = self.recurrent(y + x)
        return self.last(state[-1] + y.mean(1))


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(8, 8, bias=False), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(self.first(x).relu()).mean(1) @ self.first.weight)


@pytest.fixture(scope="module")
def reviews() -> tuple[TwoTowers, Splits]:
    experiment = TwoTowers()
    return experiment, experiment.synthetic().part(0.1, 0)


def turn(experiment: Any, splits: Splits, parts: Mapping[str, int], hp: Mapping[str, Any] = HP) -> PlacementTurn:
    settings = Settings(2, 1, "float32", Path())
    training = TorchPlaced(experiment, splits, Trial("t0000", 3, hp), settings, parts, [CPU, CPU])
    try:
        return training.turn(profiled=True)
    finally:
        training.close()


def test_all_placements_train_to_the_same_loss(reviews: tuple[TwoTowers, Splits]) -> None:
    found = calls(*reviews, Trial("t0000", 3, HP))
    towers = {"user_tower": 0, "item_tower": 1}
    losses = [turn(*reviews, parts).loss for parts in ({}, towers, alternating(found.units, 2))]
    assert losses[0] == losses[1] == losses[2]


def test_the_copies_of_a_tower_are_its_words_its_outputs_and_their_gradient(
    reviews: tuple[TwoTowers, Splits],
) -> None:
    profile = turn(*reviews, {"item_tower": 1}).profile
    assert profile is not None
    words = reviews[1].train_inputs["item"]  # type: ignore[call-overload,index]
    assert profile.num_copies == 3
    assert profile.copied_bytes == BATCH * (WORDS * words.dtype.itemsize + 2 * LATENT * 4)
    assert 0 < profile.copy_s < profile.device_s
    assert sum(each.seconds for each in profile.operations) <= profile.device_s * 1.001


def test_one_device_needs_no_copies_and_alternating_the_most(reviews: tuple[TwoTowers, Splits]) -> None:
    units = calls(*reviews, Trial("t0000", 3, HP)).units
    layers = ("embedding", "convolution", "dense")
    assert units == [*(f"{who}_tower.{layer}" for who in ("user", "item") for layer in layers), "join"]
    one, worst = turn(*reviews, {}).profile, turn(*reviews, alternating(units, 2)).profile
    assert one is not None
    assert worst is not None
    assert (one.num_copies, one.copy_s, one.copy_share) == (0, 0, 0)
    assert worst.num_copies > 3


def test_the_trace_opens_and_names_the_copies(reviews: tuple[TwoTowers, Splits]) -> None:
    trace = turn(*reviews, {"item_tower": 1}).trace
    assert trace is not None
    names = {event.get("name", "") for event in json.loads(gzip.decompress(trace))["traceEvents"]}
    assert any(name.startswith("raygpu::copy") for name in names)


def test_memory_moves_with_the_parts(reviews: tuple[TwoTowers, Splits]) -> None:
    one, other = turn(*reviews, {}).memory_gib, turn(*reviews, {"user_tower": 1, "item_tower": 1}).memory_gib
    assert one[1] == 0
    assert 0 < other[0] < one[0], "data, and the layer that joins the towers"
    assert sum(other) == pytest.approx(sum(one), rel=0.1)
    weights = SHAPE.num_words * HP["embedding"] * 4  # type: ignore[operator]
    assert other[1] * 2**30 > 2 * 4 * weights, "two embeddings, each with its gradient and Adam's two buffers"


def test_a_whole_training_is_that_of_one_device(reviews: tuple[TwoTowers, Splits]) -> None:
    settings = Settings(2, 1, "float32", Path())
    trial = Trial("t0000", 3, HP)
    placed = TorchPlaced(*reviews, trial, settings, {"user_tower.dense": 1, "join": 1}, [CPU, CPU])
    solo = TorchSolo(*reviews, trial, settings, CPU)
    for _ in range(2):
        one, other = placed.run_epoch(), solo.run_epoch()
        assert one is not None
        assert other is not None
        assert one.metrics == other.metrics


def test_parts_inside_of_placed_parts_may_be_elsewhere() -> None:
    parts = {"a": 1, "a.b.c": 0, "d.e": 2}
    names = ["", "a", "a.b", "a.b.c", "a.b.c.x", "d", "d.e", "d.e.f", "ab"]
    assert [device_of(name, parts) for name in names] == [0, 1, 1, 0, 0, 0, 2, 2, 0]


def test_layers_with_inner_parameters_are_one_part() -> None:
    torch.manual_seed(0)
    experiment = Experiment(Attention())
    splits, trial = experiment.data(), Trial("t0000", 0, {"lr": 0.1, "batch_size": 8})
    found = calls(experiment, splits, trial)
    assert found.units == ["attention", "recurrent", "last.0", "last.1"]
    with pytest.raises(BadInput, match=r"placements.mine: parameters of attention.out_proj \(device 1\) are used by"):
        require_together("mine", {"attention.out_proj": 1}, found)
    require_together("mine", {"attention": 1}, found)
    for parts in ({"attention": 1}, {"recurrent": 1}, {"last": 1}, alternating(found.units, 2)):
        fresh = Experiment(Attention())
        assert np.isfinite(turn(fresh, splits, parts, {"lr": 0.1, "batch_size": 8}).loss)


def test_a_shared_parameter_stays_with_its_users() -> None:
    experiment = Experiment(Tied())
    found = calls(experiment, experiment.data(), Trial("t0000", 0, {}))
    with pytest.raises(BadInput, match=r"parameters of first \(device 1\) are used outside of it \(device 0\)"):
        require_together("mine", {"first": 1}, found)
    assert without_shared({"first": 1, "middle": 1, "last": 0}, found) == {"middle": 1, "last": 0}


class Replacing(nn.Module):
    """Puts a new buffer in place of the old one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.mean(1))
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
        return self.last(y - self.mean)


def test_the_memory_of_an_average_whose_buffer_is_replaced() -> None:
    def memory(**more: float) -> float:
        experiment = Experiment(Replacing())
        trial, settings = Trial("t0000", 0, {"batch_size": 16, **more}), Settings(1, 1, "float32", Path())
        placed = TorchPlaced(experiment, experiment.data(), trial, settings, {"last": 1}, [CPU, CPU])
        return sum(placed.turn(profiled=False).memory_gib) * 2**30

    averaged = sum(parameter.nbytes for parameter in Replacing().parameters()) + 8 * 4
    assert memory(ema_decay=0.9) - memory() == pytest.approx(averaged)
