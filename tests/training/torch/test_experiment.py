"""The training step of a torch experiment's own; `tests/contracts/zoo/steps.py` compares the ways of training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.fused.fuse import fuse
from raygpu.training.fused.groups import TorchGrouper
from raygpu.training.torch.experiment import TorchExperiment, own_methods
from raygpu.training.torch.first_step import first_result
from raygpu.training.torch.solo import TorchSolo
from tests.models import Mlp, SmoothedMlp, few
from tests.torch_device import DEVICE
from tests.training.fused.alike import difference, parameters

HP = {"hidden": 16, "batch_size": 32, "lr": 0.1}


def trained(experiment: TorchExperiment, **values: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    settings = Settings(1, 1, "float32", Path())
    solo = TorchSolo(experiment, few(), Trial("t0000", 7, {**HP, **values}), settings, DEVICE, torch.float64)
    result = solo.run_epoch()
    assert result is not None
    return parameters(solo.model), result.metrics


def test_the_default_is_the_loss_of_the_outputs() -> None:
    class ByHand(Mlp):
        def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
            return self.loss(model(self.augment(inputs, hp)), targets)

    assert difference(trained(ByHand())[0], trained(Mlp())[0]) == 0


def test_the_step_trains_and_the_loss_validates() -> None:
    smoothed, metrics = trained(SmoothedMlp(), smoothing=0.3)
    plain, _ = trained(SmoothedMlp(), smoothing=0.0)
    assert difference(plain, trained(Mlp())[0]) == 0
    assert difference(smoothed, plain) > 1e-3
    assert metrics["train/loss"] > metrics["validation/loss"]


def test_a_hyperparameter_of_the_step_is_part_of_the_signature() -> None:
    trials = [Trial(Trial.name(i), i, {**HP, "smoothing": 0.1 * (i // 2)}) for i in range(4)]
    groups = TorchGrouper(SmoothedMlp(), few()).groups(trials)
    assert [[trial.trial_id for trial in group.trials] for group in groups] == [["t0000", "t0001"], ["t0002", "t0003"]]
    assert all(group.reason is None for group in groups)
    with pytest.raises((ValueError, NotAsAlone), match="smoothing"):
        fuse(SmoothedMlp(), trials, epochs=1, splits=few())


def test_a_hyperparameter_of_the_step_counts_as_read() -> None:
    _, read, *_ = first_result(SmoothedMlp(), few().first(8), {**HP, "smoothing": 0.1})
    assert "smoothing" in read


@pytest.mark.parametrize(
    ("returned", "line"), [(None, "a NoneType; a scalar tensor is wanted"), ("vector", "a scalar is wanted")]
)
def test_a_step_without_a_loss_is_told(returned: str | None, line: str) -> None:
    class Wrong(Mlp):
        def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Any) -> Any:
            return None if returned is None else model(inputs).sum(1)

    with pytest.raises((TypeError, ValueError, AttributeError), match=line):
        first_result(Wrong(), few().first(8), HP)


def test_methods_of_its_own() -> None:
    assert own_methods(Mlp()) == []
    assert own_methods(SmoothedMlp()) == ["training_step"]
