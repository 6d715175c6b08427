"""The places where a model can be cut, and their costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from experiments.torch_networks import TwoTowers
from raygpu.errors import BadInput
from raygpu.planning.pipelines import balanced
from raygpu.training.torch import pipeline_units
from raygpu.training.torch.pipeline_units import costs

GIB = 2**30


def units(model: nn.Module, inputs: Any) -> list[str]:
    return [unit.name for unit in costs(model, inputs, repeats=1)]


def test_units_are_in_the_order_of_execution_by_their_outermost_name() -> None:
    words = torch.zeros((2, 9), dtype=torch.int64)
    assert units(TwoTowers(30, 4, 5, 3, 3.0), {"item": words, "user": words}) == [
        "user_tower",
        "user_tower.convolution",
        "user_tower.dense",
        "item_tower",
        "item_tower.convolution",
        "item_tower.dense",
        "join",
    ]


def test_what_is_called_twice_begins_no_unit() -> None:
    twice = nn.Tanh()
    assert units(nn.Sequential(nn.Linear(2, 2), twice, nn.Linear(2, 2), twice), torch.zeros(3, 2)) == ["0", "2"]


def test_costs_are_those_of_the_units() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 900), nn.Tanh(), nn.Linear(900, 900)), nn.Tanh())
    found = costs(model, torch.ones(400, 2), num_buffers=1)
    assert [unit.name for unit in found] == ["0", "1", "1.1", "1.2", "2"]
    assert all(unit.seconds > 0 for unit in found)
    numbers = [unit.memory_gib * GIB / 4 for unit in found]
    assert numbers[3] == 3 * (900 * 900 + 900) + 400 * 900  # its input is the output that the Tanh saves: counted twice
    assert numbers[4] == 400 * 900
    assert all(parameter.grad is None for parameter in model.parameters())


class Takes(nn.Linear):
    """A layer whose calls take seconds of a test's own clock, one after the other."""

    def __init__(self, now: list[float], seconds: list[float]) -> None:
        super().__init__(2, 2)
        self._now, self._seconds = now, seconds

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        self._now[0] += self._seconds.pop(0)
        return super().forward(input)


def test_a_pass_that_is_held_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(pipeline_units, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    # The first call finds the units, and the second one is the pass that warms up.
    model = nn.Sequential(Takes(now, [90, 60, 1, 1, 2]), Takes(now, [90, 60, 4, 70, 3]))
    assert [unit.seconds for unit in costs(model, torch.ones(3, 2))] == [1, 4]


def test_more_stages_than_units_are_refused() -> None:
    found = costs(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)), torch.ones(4, 2))
    assert balanced(found, 3) == ("1", "2")
    with pytest.raises(BadInput, match=r"read 4; the model has 3 submodules that can begin a stage, so 3 stages"):
        balanced(found, 4)
