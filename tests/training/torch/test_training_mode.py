"""Parts of a model that stay in evaluation mode while the others train."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.training_mode import set_training

SHARED = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)).requires_grad_(False)
DROPOUT = nn.Dropout()


class Student(nn.Module):
    """A model with a frozen teacher and a frozen norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
        self.teacher = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.teacher.eval().requires_grad_(False)
        self.body[1].eval().requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Distilled(TorchExperiment):
    def data(self) -> Splits:
        x = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32)
        return Splits.of(x, (x[:, 0] > 0).astype(np.int64), validation=0.5)

    def model(self, hp: Any) -> nn.Module:
        return Student()

    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        return (model(inputs) - model.teacher(inputs)).square().mean()


def plain_loop(num_epochs: int) -> list[float]:
    """Train as a loop of the user's would: the teacher and the norm are never switched."""
    trial, splits, experiment = Trial("t0", 3, {"lr": 0.1}), Distilled().data(), Distilled()
    data = TorchSolo(experiment, splits, trial, settings(num_epochs), torch.device("cpu"))
    model = initial_model(experiment, trial.hyperparameters, trial.seed)
    optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
    for epoch in range(1, num_epochs + 1):
        total = 0.0
        for indices in data._chosen(epoch):
            inputs, targets = data.data.train_batch(epoch, indices)
            loss = experiment.training_step(model, inputs, targets, {})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(indices)
        losses.append(total / data.samples_per_epoch)
    return losses


def settings(epochs: int) -> Settings:
    return Settings(epochs, 1, "float32", Path())


def test_a_frozen_teacher_gives_the_curve_of_a_plain_loop_alone_and_in_an_array() -> None:
    trials = [Trial(name, 3, {"lr": 0.1, "batch_size": 4}) for name in ("t0", "t1")]
    experiment, splits, cpu = Distilled(), Distilled().data(), torch.device("cpu")
    solo = TorchSolo(experiment, splits, trials[0], settings(2), cpu)
    array = TorchArray(experiment, splits, trials, settings(2), width=2, device=cpu)
    alone, fused = ([training.run_epoch() for _ in range(2)] for training in (solo, array))
    assert [each.metrics["train/loss"] for each in alone if each] == pytest.approx(
        [each["t0"].metrics["train/loss"] for each in fused if each], rel=1e-5
    )
    assert torch.equal(solo.model.get_buffer("teacher.1.running_mean"), torch.zeros(8))
    assert torch.equal(solo.model.get_buffer("body.1.running_mean"), torch.zeros(8))


def test_production_and_a_resumed_trial_go_on_as_the_trial_alone(tmp_path: Path) -> None:
    trial, experiment, cpu = Trial("t0", 3, {"lr": 0.1, "batch_size": 4}), Distilled(), torch.device("cpu")
    solos = [TorchSolo(experiment, experiment.data(), trial, settings(2), cpu) for _ in range(4)]
    losses = [solos[0].run_epoch().metrics["train/loss"] for _ in range(2)]  # type: ignore[union-attr]
    production = TorchParallel(solos[1], ParallelSettings(4), OneRank())  # type: ignore[arg-type]
    results = [progress.result for progress in iter(production.advance, None) if progress.result is not None]
    assert [each.metrics["train/loss"] for each in results if each] == pytest.approx(losses, rel=1e-6)
    solos[2].run_epoch()
    solos[2].save(tmp_path)
    solos[3].load(tmp_path)
    assert solos[3].run_epoch().metrics["train/loss"] == losses[1]  # type: ignore[union-attr]


def test_the_curve_is_that_of_a_plain_loop() -> None:
    solo = TorchSolo(Distilled(), Distilled().data(), Trial("t0", 3, {"lr": 0.1}), settings(2), torch.device("cpu"))
    losses = [solo.run_epoch().metrics["train/loss"] for _ in range(2)]  # type: ignore[union-attr]
    assert losses == pytest.approx(plain_loop(2), rel=1e-5)


def modes(model: nn.Module) -> dict[str, bool]:
    return {name: module.training for name, module in model.named_modules()}


class Returns(Distilled):
    """An experiment with any model."""

    def __init__(self, model: nn.Module) -> None:
        self.given = model

    def model(self, hp: Any) -> nn.Module:
        return self.given


def trained(model: nn.Module) -> dict[str, bool]:
    """Return the modes of the modules of a model in training."""
    made = initial_model(Returns(model), {}, 0)
    made.eval()
    set_training(made)
    return modes(made)


def test_a_whole_network_in_evaluation_mode_trains() -> None:
    whole = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.Linear(2, 2).requires_grad_(False)).eval()
    assert all(trained(whole).values())


def test_a_network_in_evaluation_mode_trains_as_a_part_of_a_model() -> None:
    backbone = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval()
    assert all(trained(nn.Sequential(backbone, nn.Linear(2, 2))).values())


def test_a_frozen_backbone_stays_with_its_dropout_until_it_is_unfrozen() -> None:
    backbone = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval().requires_grad_(False)
    model = nn.Sequential(backbone, nn.Linear(2, 2))
    assert trained(model) == {"": True, "0": False, "0.0": False, "0.1": False, "1": True}
    backbone.requires_grad_(True)
    set_training(model)
    assert all(modes(model).values())


def test_dropout_that_a_teacher_keeps_stays_in_training() -> None:
    teacher = nn.Sequential(nn.Linear(2, 2), nn.Dropout()).eval().requires_grad_(False)
    teacher[1].train()
    assert trained(nn.Sequential(teacher, nn.Linear(2, 2)))["0.1"]


def test_evaluations_of_an_earlier_model_do_not_count() -> None:
    for _ in range(2):
        assert all(trained(nn.Sequential(SHARED, DROPOUT, nn.Linear(4, 2))).values())


def test_a_frozen_part_of_a_network_in_evaluation_mode_trains_with_it() -> None:
    """As with low-rank adapters in a network that a library returns frozen, and in evaluation mode."""
    whole = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Dropout())).eval().requires_grad_(False)
    whole[0] = nn.Sequential(whole[0], nn.Dropout(), nn.Linear(2, 2))
    assert [name for name, is_training in trained(whole).items() if not is_training] == ["0.0"]  # a linear layer


def test_deep_copies_of_traced_networks_stay_in_evaluation() -> None:
    teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval().requires_grad_(False)
    for network in (torch.fx.symbolic_trace(teacher), torch.jit.trace(teacher, torch.zeros(2, 4))):
        made = initial_model(Returns(nn.Sequential(network.eval(), nn.Linear(4, 2))), {}, 0)
        copied = copy.deepcopy(made)
        set_training(copied)
        assert modes(copied) == {"": True, "0": False, "0.0": False, "0.1": False, "1": True}


def test_a_teacher_of_torch_jit_freeze_is_taken() -> None:
    teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout()).eval()
    model = nn.Sequential(torch.jit.freeze(torch.jit.script(teacher)), nn.Linear(4, 2))
    made = initial_model(Returns(model), {}, 0)
    set_training(made)
    assert torch.equal(made[0](torch.ones(1, 4)), teacher(torch.ones(1, 4)))
