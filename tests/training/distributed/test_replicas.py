"""The copies of a model on several ranks stay alike, whatever changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu.training.distributed.rank_generators import drawn_alike
from raygpu.training.distributed.ranks import ParallelSettings, Ranks
from tests.ranks import on_ranks
from tests.training.distributed.parallel_cases import Plain, Sparse
from tests.training.distributed.parts import parameters, training

HP = {"lr": 0.05, "batch_size": 30}


class Langevin(torch.optim.SGD):
    """Steps with noise of torch's global generator."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(self.noise(parameter), alpha=0.01)

    def noise(self, parameter: torch.Tensor) -> torch.Tensor:
        return torch.randn_like(parameter)


class OwnNoise(Langevin):
    """Steps with noise of NumPy's generator."""

    def noise(self, parameter: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.random.normal(size=parameter.shape))


class Sampled(Plain):
    def optimizer(self, model: Any, hp: Any) -> Any:
        return Langevin(model.parameters(), lr=0.05)


class SampledByNumpy(Plain):
    def optimizer(self, model: Any, hp: Any) -> Any:
        return OwnNoise(model.parameters(), lr=0.05)


class InTurns(Plain):
    """Two optimizers with noise, of half the layers each."""

    def optimizer(self, model: Any, hp: Any) -> Any:
        return {name: Langevin(model[place].parameters(), lr=0.05) for name, place in (("first", 0), ("last", 2))}

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Iterator[Any]:
        for name in ("first", "last"):
            yield name, self.loss(model(inputs), targets)


class Bounded(Sparse):
    """A forward pass writes to the rows that it uses, on each rank to others."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.Embedding(30, 8, max_norm=0.5)
        return nn.Sequential(layer, nn.Flatten(), nn.Linear(512, 10))


class _Scaled(nn.Module):
    """Its scale begins with the deviation of the first samples, written in a way that torch does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.scale, self.is_set = nn.Linear(64, 10), nn.Parameter(torch.ones(64)), False

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if not self.is_set:
            self.is_set = True
            self.scale.data.copy_(1 / (pixels.detach().std(0) + 0.1))
        return self.last(pixels * self.scale)  # type: ignore[no-any-return]


class Scaled(Plain):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Scaled()


def trained(ranks: Ranks, kind: Any, epochs: int = 2) -> Any:
    """The parameters after some epochs, and a number that dropout would draw next."""
    experiment = kind()
    own = training(experiment, experiment.data(), HP, ParallelSettings(30, ratios=(2.0, 1.0)), ranks, epochs=epochs,
                   dtype=torch.float64)  # fmt: skip
    while own.advance() is not None:
        pass
    return parameters(own), float(torch.rand(()))


@pytest.mark.parametrize("kind", [Sampled, InTurns])
def test_an_optimizer_that_draws_noise_takes_the_same_steps_on_all_ranks(kind: Any) -> None:
    (one, drawn), (other, others) = on_ranks(2, trained, kind)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert drawn != others, "augmentation and dropout go on to draw other numbers on each rank"


def refusal(ranks: Ranks, kind: Any) -> str:
    with pytest.raises(ValueError, match="draw them by torch's global generator") as caught:
        trained(ranks, kind, epochs=1)
    return str(caught.value)


def test_copies_that_drift_apart_end_with_a_line() -> None:
    line, other = on_ranks(2, refusal, SampledByNumpy)
    assert line == other
    assert line.startswith("after epoch 1 the parameter ")
    assert " on rank 1 is not that on rank 0 (relative difference" in line


@pytest.mark.parametrize("kind", [Bounded, Scaled])
def test_what_a_forward_pass_writes_is_the_first_ranks_after_each_epoch(kind: Any) -> None:
    (one, _), (other, _) = on_ranks(2, trained, kind)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


class _Hidden(nn.Module):
    """Changes a buffer in a way that torch does not count, from the second step on."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = nn.Linear(64, 10), 0
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls += int(self.training)
        if self.training and self.calls > 1:
            self.mean.data.lerp_(pixels.detach().mean(0), 0.5)  # type: ignore[operator]
        return self.last(pixels - self.mean)  # type: ignore[no-any-return]


class Hidden(Plain):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Hidden()


def names_of_moving(ranks: Ranks) -> list[str]:
    experiment = Hidden()
    own = training(experiment, experiment.data(), HP, ParallelSettings(30), ranks, epochs=1)
    while own.advance() is not None:
        pass
    assert own._moving is not None
    return own._moving.names


def test_buffers_that_differ_after_an_epoch_are_the_first_ranks_from_then_on() -> None:
    assert on_ranks(2, names_of_moving) == [["mean"], ["mean"]]


def test_generators_go_on_as_if_nothing_had_been_drawn() -> None:
    cpu = torch.device("cpu")
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    with drawn_alike(cpu, 3, 1, 0, 1):
        one = torch.rand(3)
    assert torch.equal(torch.rand(3), wanted)
    with drawn_alike(cpu, 3, 1, 0, 1):
        assert torch.equal(torch.rand(3), one)
    with drawn_alike(cpu, 3, 1, 1, 1):
        assert not torch.equal(torch.rand(3), one)


class _Cached(nn.Module):
    """Keeps a table for the longest input so far, from the second step on another one on each rank."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.calls = nn.Linear(64, 10), 0
        self.register_buffer("table", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        self.calls += int(self.training)
        if self.training:
            self.mean.lerp_(pixels.detach().mean(0).to(self.mean.dtype), 0.5)  # type: ignore[operator]
            if self.calls > 1:
                self.table = torch.zeros(len(pixels) * self.calls)
            if self.calls == 3:
                self.mean = self.mean.clone()
        return self.last(pixels - self.mean)  # type: ignore[no-any-return]


class Cached(Plain):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Cached()


def sizes_and_mean(ranks: Ranks) -> tuple[int, torch.Tensor, list[torch.Tensor]]:
    experiment = Cached()
    own = training(experiment, experiment.data(), HP, ParallelSettings(30, ratios=(2.0, 1.0)), ranks, epochs=2)
    while own.advance() is not None:
        pass
    assert own._moving is not None
    assert own._moving.names == ["mean"]
    return len(own.solo.model.table), own.solo.model.mean, parameters(own)


def test_a_buffer_of_another_size_on_each_rank_stays_its_own() -> None:
    (size, mean, one), (other_size, other_mean, other) = on_ranks(2, sizes_and_mean)
    assert size != other_size
    assert mean.shape == other_mean.shape
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
