"""Trainings whose score rises and then falls: one number moves by `lr` in each of an epoch's four steps, past 1."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raygpu import Splits, TorchExperiment
from tests.best_functions import constant


class Number(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * self.number


class Passing(TorchExperiment):
    """In torch."""

    def data(self) -> Splits:
        return constant()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Number()

    def loss(self, outputs: Any, targets: Any) -> Any:
        return -outputs.mean()

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"score": -((outputs - targets) ** 2).mean()}


class Disturbed(Passing):
    """Once the number is past 1.2, its worker is killed; the next time, the sweep's own process gets a Ctrl-C."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.folder, self.driver = Path(hp["folder"]), int(hp["driver"])
        return super().model(hp)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        found = float(outputs.max())
        if os.getpid() == self.driver:  # a look at the metrics, with random outputs
            return self._score(outputs, targets)
        if 0.9 < found <= 1.2:
            time.sleep(1.1)  # so that this epoch, the best one, is reported and saved before it happens
        if found > 1.2 and self._first("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if found > 1.2 and self._first("interrupted"):
            os.kill(self.driver, signal.SIGINT)
            time.sleep(60)
        return self._score(outputs, targets)

    @staticmethod
    def _score(outputs: Any, targets: Any) -> dict[str, Any]:
        return {"score": -float(((outputs - targets) ** 2).mean())}

    def _first(self, mark: str) -> bool:
        """Whether this is the first call for this mark."""
        if (self.folder / mark).exists():
            return False
        (self.folder / mark).touch()
        return True
