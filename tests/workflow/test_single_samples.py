"""A first step looks at single samples, whose shapes a right loss may not have in a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.workflow.test_first_step import TorchBroadcast
from tests.workflow.tried_experiments import problem_of


class TorchSqueezed(TorchBroadcast):
    def loss(self, outputs: Any, targets: Any) -> Any:
        from torch.nn.functional import mse_loss

        return mse_loss(outputs.squeeze(), targets)


class TorchSqueezedStep(TorchSqueezed):
    def training_step(self, model: Any, inputs: Any, targets: Any, hp: Any) -> Any:
        return self.loss(model(inputs), targets)


@pytest.mark.parametrize("name", ["TorchSqueezed", "TorchSqueezedStep"])
def test_a_loss_without_the_axis_of_length_1_is_right(name: str, tmp_path: Path) -> None:
    """A single sample of it has no axis left, which torch warns about."""
    assert problem_of("tests/workflow/test_single_samples.py", name, {"lr": 0.1}, tmp_path).notes == []
