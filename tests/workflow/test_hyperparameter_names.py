"""Hyper-parameters of raygpu's own that change nothing are told before a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raygpu import Splits, TorchExperiment
from tests.workflow.tried_experiments import problem_of

PATH = "tests/workflow/test_hyperparameter_names.py"
EXPERIMENTS = "tests/workflow/test_first_step.py"
UNREAD = "space: a first step does not read {}: what nothing reads changes nothing"
PIXELS = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)


class TorchOwnOptimizer(TorchExperiment):
    def data(self) -> Splits:
        return Splits.of(PIXELS, (PIXELS.sum(axis=1) > 0).astype(np.int64))

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(8, 2)

    def optimizer(self, model: Any, hp: Any) -> Any:
        import torch

        return torch.optim.AdamW(model.parameters(), lr=hp["lr"])


@pytest.mark.parametrize(
    ("name", "space", "names"),
    [
        ("Torch", {"momentum": 0.9, "nesterov": True}, None),
        ("Torch", {"optimizer": "adam", "momentum": 0.9}, "momentum"),
        ("Torch", {"optimizer": {"choice": ["adam", "sgd"]}, "momentum": 0.9, "betas": [0.9, 0.99]}, None),
        ("Torch", {"betas": [0.9, 0.99], "eps": 1e-6}, "betas, eps"),
        ("Torch", {"gamma": 0.5, "schedule": "cosine"}, "gamma"),
        ("Torch", {"gamma": 0.5, "schedule": {"choice": ["cosine", "step"]}}, None),
        ("TorchOwnOptimizer", {"lr": 0.1, "weight_decay": 0.1, "schedule": "cosine"}, "schedule, weight_decay"),
        ("TorchOwnOptimizer", {"lr": 0.1, "batch_size": 64, "clip_norm": 1.0}, None),
        ("Keras", {"optimizer": "adam", "momentum": 0.9}, "momentum"),
    ],
)
def test_a_setting_without_effect_is_told(name: str, space: dict[str, Any], names: str | None, tmp_path: Path) -> None:
    path = PATH if name == "TorchOwnOptimizer" else EXPERIMENTS
    assert problem_of(path, name, space, tmp_path).notes == ([] if names is None else [UNREAD.format(names)])
