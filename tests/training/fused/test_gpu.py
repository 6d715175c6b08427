"""Arrays on an NVIDIA GPU: recorded steps, and members that equal the same trials alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.width import settle
from raygpu.training.torch.solo import TorchSolo
from tests.models import MODELS, few

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use"),
]


@pytest.mark.parametrize("graphs", [False, True], ids=["launched", "recorded"])
@pytest.mark.parametrize("name", MODELS)
def test_members_equal_trainings_alone(name: str, graphs: bool) -> None:
    kind, shape = MODELS[name]
    experiment = kind()
    settings = Settings(3, 1, "float32", Path())
    trials = [Trial(f"t{i}", i + 5, {**shape, "lr": 0.01 * (i + 1), "momentum": 0.3 * i}) for i in range(3)]
    array = TorchArray(experiment, experiment.data(), trials, settings, width=2, dtype=torch.float64)
    array.graphs = graphs
    while array.run_epoch() is not None:
        pass
    for trial in trials:
        solo = TorchSolo(experiment, experiment.data(), trial, settings, dtype=torch.float64)
        while solo.run_epoch() is not None:
            pass
        fused = array.member_state(trial.trial_id)["model"]
        for parameter, expected in solo.model.named_parameters():
            assert (fused[parameter] - expected).norm() <= 1e-9 * expected.norm()


def test_a_step_is_recorded_and_told() -> None:
    kind, shape = MODELS["mlp"]
    experiment = kind()
    trials = [Trial(f"t{i}", i, {**shape, "lr": 0.1}) for i in range(64)]
    array = TorchArray(experiment, experiment.data(), trials, Settings(20, 1, "float32", Path()))
    lines = settle(array)
    assert "CUDA graph" in lines[0]
    assert array.graphs


class Dropping(TorchExperiment):
    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(hp["dropout"]), nn.Linear(32, 10))


@pytest.mark.parametrize("graphs", [False, True], ids=["launched", "recorded"])
def test_members_draw_the_numbers_of_trainings_alone(graphs: bool) -> None:
    settings = Settings(3, 1, "float32", Path())
    trials = [Trial(f"t{i}", i + 5, {"dropout": 0.3, "lr": 0.01 * (i + 1)}) for i in range(3)]
    array = TorchArray(Dropping(), few(), trials, settings, width=2, dtype=torch.float64)
    array.graphs = graphs
    while array.run_epoch() is not None:
        pass
    for trial in trials:
        solo = TorchSolo(Dropping(), few(), trial, settings, dtype=torch.float64)
        while solo.run_epoch() is not None:
            pass
        fused = array.member_state(trial.trial_id)["model"]
        for parameter, expected in solo.model.named_parameters():
            assert (fused[parameter] - expected).norm() <= 1e-9 * expected.norm()
