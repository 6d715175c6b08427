"""Members of an array in fp16 leave out the steps that the same trials alone do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused import loss_scales
from raygpu.training.fused.audit import same_steps
from raygpu.training.fused.compiled_step import compiled_in_memory
from raygpu.training.fused.dry_run import obstacle
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.saved_array import save_saved_members
from raygpu.training.torch import loss_scale
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, SGD, difference, members
from tests.training.torch.overflowing import Hopeless, NoLoss, Overflowing, OverflowingLoss, Rotating

EPOCHS = 4
ADAM: list[dict[str, Any]] = [
    {"lr": 0.01},
    {"lr": 0.003, "weight_decay": 0.1, "schedule": "cosine"},
    {"lr": 0.01, "betas": (0.0, 0.99), "ema_decay": 0.9},
    {"lr": 0.02, "clip_norm": 0.5},
]
MEMBERS = {
    "sgd": members({}, SGD, batch_size=16),
    "adam": members({}, ADAM, batch_size=16, optimizer="adam"),
    "adamw": members({}, ADAM, batch_size=16, optimizer="adamw"),
}
SETTINGS = Settings(EPOCHS, 1, "fp16", Path())


@pytest.fixture(autouse=True)
def grows_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scale, "GROWTH_STEPS", 3)
    monkeypatch.setattr(loss_scales, "GROWTH_STEPS", 3)


def array_of(trials: list[Trial], kind: Any = Overflowing, **options: Any) -> TorchArray:
    return TorchArray(kind(), few(), trials, SETTINGS, device=DEVICE, **{"dtype": torch.float64, "width": 3, **options})


def alone(trial: Trial, kind: Any = Overflowing) -> TorchSolo:
    """In double precision, which torch.autocast leaves as it is: the steps alone are those of fp16."""
    return TorchSolo(kind(), few(), trial, SETTINGS, DEVICE, torch.float64)


@pytest.mark.parametrize("optimizer", MEMBERS)
def test_members_equal_trainings_alone(optimizer: str) -> None:
    trials = MEMBERS[optimizer]
    array = array_of(trials)
    results = [array.run_epoch() for _ in range(EPOCHS)]
    left_out = set()
    for trial in trials:
        training = alone(trial)
        wanted = [result.metrics for result in iter(training.run_epoch, None)]
        for found, metrics in zip(results, wanted, strict=True):
            assert found is not None
            assert found[trial.trial_id].metrics == pytest.approx(metrics, rel=1e-9)
        state, saved = array.member_state(trial.trial_id), training.state()
        assert difference(state["model"], saved["model"]) <= EXACT
        assert state["loss_scale"] == saved["loss_scale"] | {"growth_interval": 3}
        assert state["optimizer"]["num_steps"] == saved["optimizer"]["num_steps"]
        left_out.add(EPOCHS * array.steps_per_epoch - state["optimizer"]["num_steps"])
    assert len(left_out) > 1, "members leave out steps of their own"
    assert min(left_out) > 0


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_members_and_trials_go_on_from_each_other_s_checkpoints(optimizer: str, tmp_path: Path) -> None:
    trials = MEMBERS[optimizer]
    whole, first, second = array_of(trials), array_of(trials), array_of(trials, width=2)
    for _ in range(EPOCHS):
        whole.run_epoch()
    first.run_epoch()
    first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    folders = {trial.trial_id: tmp_path / trial.trial_id for trial in trials}
    for folder in folders.values():
        folder.mkdir()
    save_saved_members(tmp_path, folders)
    third = array_of(trials)
    third.run_epoch()
    third.run_epoch()
    for trial in trials:  # the last member's are read back from its training alone
        training = alone(trial)
        training.load(folders[trial.trial_id])
        training.save(folders[trial.trial_id])
        third.load_member(trial.trial_id, folders[trial.trial_id])
        for _ in iter(training.run_epoch, None):
            pass
        wanted = whole.member_state(trial.trial_id)
        assert difference(training.state()["model"], wanted["model"]) <= EXACT
        assert training.state()["loss_scale"] == wanted["loss_scale"]
    for array in (second, third):
        array.run_epoch()
        array.run_epoch()
        for trial in trials:
            found, wanted = (each.member_state(trial.trial_id) for each in (array, whole))
            assert difference(found["model"], wanted["model"]) <= EXACT
            assert found["loss_scale"] == wanted["loss_scale"]


def test_a_member_takes_over_the_loss_scale_of_another() -> None:
    trials = MEMBERS["adamw"]
    array = array_of(trials)
    array.run_epoch()
    array.copy_members({"t0000": "t0003"})
    taker, donor = (array.member_state(name) for name in ("t0000", "t0003"))
    assert taker["loss_scale"] == donor["loss_scale"]
    assert taker["optimizer"]["num_steps"] == donor["optimizer"]["num_steps"]


def test_gradients_that_are_never_finite_are_told_as_a_loss_that_is_none() -> None:
    trials = MEMBERS["sgd"][:2]
    array = array_of(trials, Hopeless)
    losses = [[result.metrics["train/loss"] for result in found.values()] for found in iter(array.run_epoch, None)]
    wanted = [
        [result.metrics["train/loss"] for result in iter(alone(trial, Hopeless).run_epoch, None)] for trial in trials
    ]
    for found, expected in zip(losses, zip(*wanted, strict=True), strict=True):
        assert found == pytest.approx(expected, rel=1e-9, nan_ok=True)
    assert all(map(math.isnan, losses[-1]))


@pytest.mark.parametrize("kind", [OverflowingLoss, NoLoss, Rotating])
def test_what_is_not_finite_is_told_as_by_trainings_alone(kind: Any) -> None:
    trials = MEMBERS["adamw"]
    array = array_of(trials, kind)
    wanted = {trial.trial_id: alone(trial, kind) for trial in trials}
    for _ in range(2):
        found = array.run_epoch()
        assert found is not None
        for name, training in wanted.items():
            result = training.run_epoch()
            assert result is not None
            assert found[name].metrics == pytest.approx(result.metrics, rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_step_that_is_compiled_for_a_gpu_does_the_same(compiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiles:
        monkeypatch.setattr(torch, "compile", lambda graph, **_: graph)
    arrays = [array_of(MEMBERS["adamw"][:3]) for _ in range(2)]
    found = []
    for array, is_compiled in zip(arrays, (False, True), strict=True):
        (tile,) = array.tiles
        stacks = tile.parameters, tile.fixed, tile.buffers, tile.optimizer_state
        order = torch.stack([array.data.order(trial, 1) for trial in tile.trials])
        numbers = array.program.optimizer.numbers(tile.optimizer_settings, 1, array.steps_per_epoch, EPOCHS)
        compiled = None
        with array.program.training():
            for step in range(3):
                batch = array.data.train_batch(1, order[:, 16 * step : 16 * step + 16])
                arguments = *stacks, *batch, numbers[step]
                if is_compiled:
                    compiled = compiled or compiled_in_memory(array.program.eager_step, arguments)
                    compiled(*arguments)
                else:
                    array.program.eager_step(tile, *batch, numbers[step])
        found.append(array.member_state("t0002"))
    assert difference(found[1]["model"], found[0]["model"]) <= EXACT
    assert found[1]["loss_scale"] == found[0]["loss_scale"]


@pytest.mark.parametrize("epochs", [0, 1])
def test_steps_that_are_compared_do_not_hide_behind_an_overflow(epochs: int) -> None:
    array = array_of(MEMBERS["adamw"], dtype=None, width=4)
    for _ in range(epochs):
        array.run_epoch()
    (tile,) = array.tiles

    def too_large(tile: Any, inputs: Any, targets: Any, numbers: torch.Tensor) -> torch.Tensor:
        changed = numbers.clone()
        changed[array.program.optimizer.columns.index("lr")] *= 2
        return array.program.eager_step(tile, inputs, targets, changed)

    assert same_steps(array, tile, array.program.eager_step)
    assert not same_steps(array, tile, too_large)


@pytest.mark.slow
def test_a_compiled_step_equals_an_eager_one() -> None:
    trials = MEMBERS["adamw"]
    eager, compiled = array_of(trials, dtype=None), array_of(trials, dtype=None)
    compiled.program.compile(3, 16)
    for array in (eager, compiled):
        array.run_epoch()
    for trial in trials:
        one, other = (array.member_state(trial.trial_id) for array in (eager, compiled))
        assert difference(one["model"], other["model"]) < 0.02
        assert one["loss_scale"] == other["loss_scale"]


def test_it_can_be_fused_and_members_learn_in_half_precision() -> None:
    trials = members({"hidden": 16}, ADAM, batch_size=16, optimizer="adamw")
    assert obstacle(Mlp(), few(), trials[:2], "fp16") is None
    array = array_of(trials, Mlp, dtype=None)
    *_, last = iter(array.run_epoch, None)
    assert max(result.metrics["validation/accuracy"] for result in last.values()) > 0.5
    assert {array.member_state(trial.trial_id)["loss_scale"]["scale"] for trial in trials} != {2.0**16}


class OneElement(Overflowing):
    def loss(self, outputs: Any, targets: Any) -> Any:
        return super().loss(outputs, targets).reshape(1)


def test_a_loss_of_one_element_is_a_scalar() -> None:
    trials = MEMBERS["sgd"][:2]
    array = array_of(trials, OneElement)
    array.run_epoch()
    for trial in trials:
        training = alone(trial, OneElement)
        training.run_epoch()
        assert difference(array.member_state(trial.trial_id)["model"], training.state()["model"]) <= EXACT
