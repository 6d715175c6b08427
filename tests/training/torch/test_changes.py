"""A training whose hyper-parameters change by epoch, as a population's winner is trained again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.planning.batches import batch_bounds, epoch_order
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.ranks import OneRank, ParallelSettings
from raygpu.training.distributed.torch_ranks import TorchParallel
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.models import initial_model
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import EXACT, difference, parameters

EPOCHS = 6
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "sgd": (
        {"lr": 0.1, "weight_decay": 1e-3},
        [{"epoch": 2, "lr": 0.05, "momentum": 0.9}, {"epoch": 4, "weight_decay": 1e-2}, {"epoch": 5, "momentum": 0.5}],
    ),
    "adam": ({"lr": 0.01}, [{"epoch": 3, "lr": 0.002, "weight_decay": 0.1, "betas": (0.8, 0.99)}]),
}


def settings(name: str) -> tuple[dict[str, Any], OptimizerSettings]:
    values, changes = CASES[name]
    hp = {"hidden": 16, "batch_size": 32, "optimizer": name, **values}
    return hp, OptimizerSettings.of(hp, changes)


def by_hand(name: str) -> dict[str, torch.Tensor]:
    """A loop over torch.optim's own optimizer, whose numbers are set before each epoch."""
    hp, _ = settings(name)
    model = initial_model(Mlp(), hp, 7).double()
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[name]
    optimizer: Any = kind(model.parameters(), **CASES[name][0])
    data = few()
    inputs = torch.from_numpy(data.train_inputs).double()  # type: ignore[arg-type]
    targets = torch.from_numpy(data.train_targets)  # type: ignore[arg-type]
    for epoch in range(1, EPOCHS + 1):
        for change in CASES[name][1]:
            if change["epoch"] == epoch:
                optimizer.param_groups[0].update({key: value for key, value in change.items() if key != "epoch"})
        order = torch.from_numpy(epoch_order(7, epoch, len(targets)))
        for start, end in batch_bounds(len(targets), 32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[order[start:end]]), targets[order[start:end]]).backward()
            optimizer.step()
    return parameters(model)


def solo(name: str, experiment: Experiment | None = None) -> TorchSolo:
    hp, own = settings(name)
    trial = Trial("t0000", 7, hp)
    return TorchSolo(
        experiment or Mlp(), few(), trial, Settings(EPOCHS, 1, "float32", Path()), DEVICE, torch.float64,
        optimizer_settings=own,
    )  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_a_training_alone_equals_a_loop_by_hand(name: str, tmp_path: Path) -> None:
    wanted, training = by_hand(name), solo(name)
    for _ in range(EPOCHS):
        training.run_epoch()
    assert difference(parameters(training.model), wanted) <= EXACT
    constant = TorchSolo(
        Mlp(),
        few(),
        Trial("t0000", 7, settings(name)[0]),
        Settings(EPOCHS, 1, "float32", Path()),
        DEVICE,
        torch.float64,
    )
    for _ in range(EPOCHS):
        constant.run_epoch()
    assert difference(parameters(constant.model), wanted) > 1e-3


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_training_goes_on_from_a_checkpoint_beside_a_change(name: str, stop: int, tmp_path: Path) -> None:
    first, second = solo(name), solo(name)
    for _ in range(stop):
        first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    while second.run_epoch() is not None:
        pass
    assert difference(parameters(second.model), by_hand(name)) <= EXACT


@pytest.mark.parametrize("name", list(CASES))
def test_a_production_training_equals_a_loop_by_hand(name: str) -> None:
    _, own = settings(name)
    whole = TorchParallel(solo(name), ParallelSettings(32, optimizer_settings=own), OneRank())
    rates = []
    while (progress := whole.advance()) is not None:
        rates += [progress.lr] if progress.result is not None else []
    assert difference(parameters(whole.solo.model), by_hand(name)) <= EXACT
    assert rates == [own.in_epoch(epoch).lr for epoch in range(1, EPOCHS + 1)]
