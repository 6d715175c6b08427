"""Members draw the random numbers of the same trials trained alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from tests.models import Mlp
from tests.training.fused.alike import (
    EXACT,
    difference,
    member_difference,
    members,
    new_array,
    parameters,
    run,
    solo,
)


class Dropping(Mlp):
    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(hp["dropout"]), nn.Linear(32, 10))


class Encoder(Mlp):
    """Dropout in attention too, whose result lies in memory in another order in an array."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=hp["dropout"], batch_first=True)
        return nn.Sequential(nn.Unflatten(1, (8, 8)), layer, nn.Flatten(), nn.Linear(64, 10))


class StochasticDepth(Mlp):
    """Fills a tensor of its own with random numbers in place."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.last = nn.Linear(64, 16), nn.Linear(16, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                kept = torch.empty(len(x), 1, dtype=x.dtype).bernoulli_(1 - hp["dropout"])
                return self.last(self.first(x) * kept + torch.rand_like(kept))  # in evaluation too

        return Model()


class ExpandedNoise(Mlp):
    """Draws numbers in the shape of a tensor that is expanded, whose memory has another order of dimensions."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.position = nn.Parameter(torch.randn(1, 64))
                self.last = nn.Linear(64, 10)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                noise = torch.rand_like(self.position.expand(len(x), -1))
                return self.last(x + self.position + hp["dropout"] * noise)

        return Model()


@pytest.mark.parametrize("kind", [Dropping, Encoder, StochasticDepth, ExpandedNoise])
def test_random_numbers_are_those_of_the_training_alone(kind: type[Mlp]) -> None:
    """Whatever the width, and whoever leaves: each member draws from generators of its own."""
    trials = members({"dropout": 0.3}, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.1}, {"lr": 0.02}])
    for width in (None, 1, 3):
        array = new_array(kind(), trials, width=width)
        first = array.run_epoch()
        array.drop([trials[0].trial_id])
        last = run(array, 1)[-1]
        assert first is not None
        for trial in trials[1:]:
            training = solo(kind(), trial, torch.float64, epochs=2)
            ends = run(training, 2)
            assert member_difference(array, trial, parameters(training.model)) <= EXACT
            for name, value in ends[-1].metrics.items():
                assert last[trial.trial_id].metrics[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", [Dropping, Encoder, StochasticDepth])
def test_a_compiled_step_draws_the_same_random_numbers(kind: type[Mlp], exported_alone: dict[str, Any]) -> None:
    trials = members({"dropout": 0.3}, [{"lr": 0.1}, {"lr": 0.05, "momentum": 0.9}, {"lr": 0.02}])
    array = new_array(kind(), trials, width=2)
    for width in {tile.width for tile in array.tiles}:
        array.program.compile(width, array.batch_size)
        array.compiled_s[width] = 0.0
    run(array, 2)
    assert len(exported_alone) == 2
    for trial in trials:
        training = solo(kind(), trial, torch.float64, epochs=2)
        run(training, 2)
        assert member_difference(array, trial, parameters(training.model)) <= EXACT


class ByNumpy(Dropping):
    """Draws in evaluation too, and has a metric that vmap cannot map: the first evaluation is begun twice."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        class Model(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return super().forward(nn.functional.dropout(x, 0.3, training=True))

        return Model(64, 10)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"accuracy": float((outputs.detach().numpy().argmax(1) == targets.numpy()).mean())}


def test_an_evaluation_that_is_begun_twice_draws_once() -> None:
    trials = members({}, [{"lr": 0.1}, {"lr": 0.05}])
    found = run(new_array(ByNumpy(), trials), 2)
    for trial in trials:
        ends = run(solo(ByNumpy(), trial, torch.float64, epochs=2), 2)
        for epoch, end in enumerate(ends):
            assert found[epoch][trial.trial_id].metrics == pytest.approx(end.metrics, rel=1e-9)


@pytest.mark.parametrize("width", [None, 1])
def test_members_of_one_seed_have_the_same_masks(width: int | None) -> None:
    hp = {"dropout": 0.5, "batch_size": 200, "lr": 0.1}
    array = new_array(Dropping(), [Trial(f"t{i}", seed, hp) for i, seed in enumerate((3, 3, 4))], width=width)
    run(array, 1)
    one, other, third = [array.member_state(trial.trial_id)["model"] for trial in array.trials]
    assert difference(one, other) == 0
    assert difference(one, third) > 1e-3
