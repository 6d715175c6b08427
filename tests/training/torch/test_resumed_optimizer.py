"""An experiment's own optimizer and scheduler after a checkpoint, with the numbers of before and with others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few

EPOCHS, LATER = 2, 4
HP = {"hidden": 8, "batch_size": 50, "rate": 0.01}
STEPS = 4
"""Number of steps of an epoch of 200 samples."""


class Table(lr_scheduler.LRScheduler):
    """Has a learning rate for each step, in an array."""

    def __init__(self, optimizer: torch.optim.Optimizer, num_steps: int) -> None:
        self.table = np.linspace(0.01, 0.0, num_steps + 1)
        super().__init__(optimizer)

    def get_lr(self) -> list[Any]:
        return [float(self.table[self.last_epoch])]


class Rising:
    """A factor of the learning rate that keeps its number of steps, as a LambdaLR saves it."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def __call__(self, step: int) -> float:
        return (step + 1) / self.num_steps


def one_cycle(optimizer: Any, rate: float, num_steps: int) -> Any:
    return lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=num_steps)


def joined(optimizer: Any, rate: float, num_steps: int) -> Any:
    parts = [lr_scheduler.LinearLR(optimizer), lr_scheduler.CosineAnnealingLR(optimizer, num_steps - 2)]
    return lr_scheduler.SequentialLR(optimizer, parts, [2])


def rising(optimizer: Any, rate: float, num_steps: int) -> Any:
    """Rises over the whole training: its first factor too is another one in a longer training."""
    return lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / num_steps)


SCHEDULERS: dict[str, Any] = {
    "none": lambda optimizer, rate, num_steps: None,
    "one cycle": one_cycle,
    "cosine": lambda optimizer, rate, num_steps: lr_scheduler.CosineAnnealingLR(optimizer, num_steps),
    "milestones": lambda optimizer, rate, num_steps: lr_scheduler.MultiStepLR(optimizer, [num_steps // 2]),
    "joined": joined,
    "table": lambda optimizer, rate, num_steps: Table(optimizer, num_steps),
    "object": lambda optimizer, rate, num_steps: lr_scheduler.LambdaLR(optimizer, Rising(num_steps)),
    "function": rising,
}


class Own(Mlp):
    def __init__(self, schedule: str, *, several: bool = False, **options: Any) -> None:
        self.schedule, self.several, self.options = schedule, several, options

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> Any:
        if self.several:
            return {name: torch.optim.Adam(part, lr=hp["rate"]) for name, part in (("a", model[:1].parameters()),  # type: ignore[index]
                                                                                   ("b", model[1:].parameters()))}  # type: ignore[index]  # fmt: skip
        return torch.optim.Adam(model.parameters(), lr=hp["rate"], **self.options)

    def scheduler(self, optimizer: torch.optim.Optimizer, hp: Mapping[str, Any], num_steps: int) -> Any:
        return SCHEDULERS[self.schedule](optimizer, hp["rate"], num_steps)

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        if not self.several:
            return super().training_step(model, inputs, targets, hp)
        return ((name, self.loss(model(inputs), targets)) for name in "ab")


def solo(experiment: Own, epochs: int = EPOCHS, **hp: Any) -> TorchSolo:
    settings = Settings(epochs, 1, "float32", Path())
    return TorchSolo(experiment, few(), Trial("t0000", 7, HP | hp), settings, torch.device("cpu"))


def told(experiment: Own, folder: Path, epochs: int = EPOCHS, **hp: Any) -> str:
    """The lines of a training that goes on."""
    again = solo(experiment, epochs, **hp)
    again.load(folder)
    return "; ".join(again.notes)


def saved(experiment: Own, folder: Path) -> None:
    first = solo(experiment)
    first.run_epoch()
    first.save(folder)


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        ("one cycle", "total_steps 16 in place of 8"),
        ("cosine", "T_max 16 in place of 8"),
        ("milestones", "milestones 8 in place of 4"),
        ("joined", "T_max 14 in place of 6"),
        ("table", r"table \(17,\) \w+ in place of \(9,\) \w+"),
        ("object", "num_steps 16 in place of 8"),
    ],
)
def test_a_schedule_of_another_length_is_told(schedule: str, line: str, tmp_path: Path) -> None:
    saved(Own(schedule), tmp_path)
    assert not told(Own(schedule), tmp_path)
    assert re.search(
        rf"scheduler\(\) now give other numbers .*: {line}.*; set epochs", told(Own(schedule), tmp_path, LATER)
    )


@pytest.mark.parametrize(("schedule", "name"), [("none", "lr"), ("cosine", "initial_lr"), ("function", "initial_lr")])
def test_another_learning_rate_is_told(schedule: str, name: str, tmp_path: Path) -> None:
    saved(Own(schedule), tmp_path)
    assert f": {name} 0.02 in place of 0.01" in told(Own(schedule), tmp_path, rate=0.02)


def test_of_several_optimizers_each_is_looked_at(tmp_path: Path) -> None:
    saved(Own("cosine", several=True), tmp_path)
    assert not told(Own("cosine", several=True), tmp_path)
    assert "T_max 16 in place of 8" in told(Own("cosine", several=True), tmp_path, LATER)


def test_another_decay_in_the_code_is_told(tmp_path: Path) -> None:
    saved(Own("none"), tmp_path)
    assert "weight_decay 0.1 in place of 0;" in told(Own("none", weight_decay=0.1), tmp_path)
    assert not told(Own("none", weight_decay=0.0), tmp_path)


@pytest.mark.parametrize("schedule", ["none", "function"])
def test_more_epochs_go_on_where_the_state_has_no_length(schedule: str, tmp_path: Path) -> None:
    saved(Own(schedule), tmp_path)
    longer = solo(Own(schedule), LATER)
    longer.load(tmp_path)
    while longer.run_epoch() is not None:
        pass
    assert longer.optimizer.own_lr == pytest.approx(HP["rate"])
    assert longer.optimizer.num_steps == LATER * STEPS


def test_another_way_to_compute_the_same_step_goes_on(tmp_path: Path) -> None:
    saved(Own("cosine", foreach=False), tmp_path)
    again = solo(Own("cosine", foreach=True))
    again.load(tmp_path)
    assert again.run_epoch() is not None
