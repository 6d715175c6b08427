"""Trainings in fp16 take and leave out the steps that a loop with torch's own GradScaler does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch import loss_scale
from raygpu.training.torch.models import CHECKPOINT, initial_model
from raygpu.training.torch.solo import TorchSolo
from tests.models import few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference
from tests.training.torch.overflowing import (
    Hopeless,
    NoLoss,
    Overflowing,
    OverflowingLoss,
    OverflowingMean,
    OverflowingSamples,
    Rotating,
)

EPOCHS, BATCH = 3, 16
HP = {"lr": 0.05, "momentum": 0.9, "batch_size": BATCH}
ADAMW = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1, "batch_size": BATCH, "clip_norm": 0.5}


def solo(
    hp: Mapping[str, Any] = HP, kind: Any = Overflowing, dtype: torch.dtype | None = torch.float64, epochs: int = EPOCHS
) -> TorchSolo:
    """In double precision, which torch.autocast leaves as it is: the steps alone are those of fp16."""
    return TorchSolo(kind(), few(), Trial("t0000", 7, hp), Settings(epochs, 1, "fp16", Path()), DEVICE, dtype)


def by_hand(kind: type[Overflowing], hp: Mapping[str, Any], epochs: int) -> tuple[nn.Module, float, int]:
    """A loop as torch's documentation has it: the model, the loss scale at the end, and the steps left out."""
    model = initial_model(kind(), hp, 7).double()
    data, experiment = few(), kind()
    inputs, targets = torch.as_tensor(data.train_inputs).double(), torch.as_tensor(data.train_targets)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), hp["lr"], hp["momentum"])
        if "momentum" in hp
        else torch.optim.AdamW(model.parameters(), hp["lr"], weight_decay=hp["weight_decay"])
    )
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    left_out = 0
    for epoch in range(1, epochs + 1):
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in batch_bounds(len(targets), hp["batch_size"]):
            optimizer.zero_grad()
            loss = experiment.loss(model(inputs[order[start:end]]), targets[order[start:end]])
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if "clip_norm" in hp:
                nn.utils.clip_grad_norm_(model.parameters(), hp["clip_norm"])
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            left_out += scaler.get_scale() < before
    return model, scaler.get_scale(), left_out


@pytest.fixture(autouse=True)
def grows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)


@pytest.mark.parametrize(
    ("kind", "hp", "epochs"),
    [
        (Overflowing, HP, EPOCHS),
        (Overflowing, ADAMW, EPOCHS),
        (OverflowingSamples, {**HP, "batch_size": 4, "micro_batch_size": 2}, 1),
        (OverflowingMean, {**HP, "batch_size": 4, "micro_batch_size": 2}, 1),
    ],
    ids=["sgd", "adamw", "in parts", "a Mean in parts"],
)
def test_a_training_equals_a_loop_with_grad_scaler(kind: type[Overflowing], hp: dict[str, Any], epochs: int) -> None:
    model, scale, left_out = by_hand(Overflowing if kind is Overflowing else OverflowingSamples, hp, epochs)
    training = solo(hp, kind, epochs=epochs)
    results = list(iter(training.run_epoch, None))
    assert left_out >= 3, "or nothing was tested"
    assert all(math.isfinite(result.metrics["train/loss"]) for result in results)
    assert difference(training.model.state_dict(), model.state_dict()) <= EXACT
    assert training.state()["loss_scale"]["scale"] == scale
    assert training.optimizer.num_steps == epochs * training.steps_per_epoch - left_out


def test_it_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    whole, first, second = solo(ADAMW), solo(ADAMW), solo(ADAMW)
    wanted = [result.metrics for result in iter(whole.run_epoch, None)]
    first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert [result.metrics for result in iter(second.run_epoch, None)] == wanted[1:]
    assert second.state()["loss_scale"] == whole.state()["loss_scale"]
    assert torch.load(tmp_path / CHECKPOINT, weights_only=True)["loss_scale"]["scale"] < 2**16


def test_a_training_in_one_rank_equals_one_alone() -> None:
    alone = solo(ADAMW)
    alone.run_epoch()
    settings = ParallelSettings(BATCH, 1, optimizer_settings=OptimizerSettings.of(ADAMW))
    ranked = TorchParallel(solo(ADAMW), settings, OneRank())
    while not ranked.epoch:
        ranked.advance()
    assert difference(ranked.solo.model.state_dict(), alone.model.state_dict()) <= EXACT
    assert ranked.states()["loss_scale"] == alone.state()["loss_scale"]


def test_without_fp16_nothing_is_scaled() -> None:
    training = TorchSolo(Overflowing(), few(), Trial("t0000", 7, HP), Settings(1, 1, "float32", Path()), DEVICE)
    assert training.state()["loss_scale"] == {}
    assert math.isnan(training.run_epoch().metrics["train/loss"])  # type: ignore[union-attr]


def test_gradients_that_are_never_finite_are_told_as_a_loss_that_is_none() -> None:
    training = solo(kind=Hopeless, epochs=5)
    losses = [result.metrics["train/loss"] for result in iter(training.run_epoch, None)]
    assert math.isfinite(losses[0])
    assert math.isnan(losses[-1])


def test_a_loss_that_is_not_finite_is_left_out_with_its_step() -> None:
    training = solo(kind=OverflowingLoss)
    found = [result.metrics["train/loss"] for result in iter(training.run_epoch, None)]
    assert training.optimizer.num_steps < EPOCHS * training.steps_per_epoch
    assert all(0 < loss < 3 for loss in found)
    (loss, *_) = (result.metrics["train/loss"] for result in iter(solo(kind=NoLoss).run_epoch, None))
    assert math.isnan(loss)


def test_complex_parameters_are_unscaled_too() -> None:
    training = solo(ADAMW, Rotating)
    plain = TorchSolo(
        Rotating(), few(), Trial("t0000", 7, ADAMW), Settings(EPOCHS, 1, "float32", Path()), DEVICE, torch.float64
    )
    first, second = training.run_epoch(), plain.run_epoch()
    assert first is not None
    assert second is not None
    if training.optimizer.num_steps == plain.optimizer.num_steps:  # no step was left out, or this compares nothing
        assert first.metrics == pytest.approx(second.metrics, rel=1e-9)
    assert math.isfinite(first.metrics["train/loss"])


class Thawing(Overflowing):
    """Its first layer is frozen until the first step, which unfreezes it before its forward pass."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        model = super().model(hp)
        next(model.children()).requires_grad_(False)
        return model

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), hp["lr"])

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        model.requires_grad_()
        return nn.functional.cross_entropy(model(inputs), targets)


def test_a_parameter_that_is_unfrozen_is_unscaled_and_clipped_from_its_first_step_on() -> None:
    hp = {"lr": 0.05, "clip_norm": 0.1, "batch_size": BATCH}
    training = solo(hp, Thawing, epochs=1)
    plain = TorchSolo(Thawing(), few(), Trial("t0000", 7, hp), Settings(1, 1, "float32", Path()), DEVICE, torch.float64)
    for each in (training, plain):
        each.run_epoch()
    assert difference(training.model.state_dict(), plain.model.state_dict()) <= EXACT
    model = initial_model(Thawing(), hp, 7).double().requires_grad_()
    optimizer, data = torch.optim.SGD(model.parameters(), hp["lr"]), few()
    order = torch.from_numpy(epoch_order(7, 1, data.num_train))
    for start, end in batch_bounds(data.num_train, BATCH):
        rows = order[start:end]
        optimizer.zero_grad()
        outputs = model(torch.as_tensor(data.train_inputs)[rows].double())
        nn.functional.cross_entropy(outputs, torch.as_tensor(data.train_targets)[rows]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), hp["clip_norm"])
        optimizer.step()
    assert difference(plain.model.state_dict(), model.state_dict()) <= EXACT


def test_half_precision_learns_what_single_precision_does() -> None:
    def accuracy(precision: Any) -> float:
        settings = Settings(8, 1, precision, Path())
        training = TorchSolo(Overflowing(), few(), Trial("t0000", 7, ADAMW | {"clip_norm": None}), settings, DEVICE)
        kinds = set()
        training.model.register_forward_hook(lambda *arguments: kinds.add(arguments[-1].dtype))
        *_, last = iter(training.run_epoch, None)
        assert kinds == {torch.float16}
        return last.metrics["validation/accuracy"]

    assert accuracy("fp16") > 0.5
