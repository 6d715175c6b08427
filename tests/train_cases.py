"""Experiments for production trainings: a small one, and some whose workers die or fail."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.digits import Mlp as DigitsMlp
from raygpu import KerasExperiment, Splits, TorchExperiment
from tests.processes import die_once
from tests.small_data import few, halves


class Small(DigitsMlp):
    """With dropout, so that random state matters."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, hp["hidden"]), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hp["hidden"], 10))


class Disturbed(Small):
    """Its worker of rank 1 dies at each of the calls in `deaths`, once; then the driver is interrupted.

    The size of its outputs grows with every epoch: the smallest is the first epoch's.
    """

    calls = 0

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import torch.distributed as dist

        if dist.is_initialized() and dist.get_rank() == 1:
            self.calls += 1
            folder, deaths = Path(hp["folder"]), hp["deaths"]
            if self.calls in deaths:
                die_once(folder / str(self.calls))
            if deaths and all((folder / str(death)).exists() for death in deaths):
                self._interrupt(folder / "interrupted", int(hp["driver"]))
        return inputs

    def _interrupt(self, mark: Path, driver: int) -> None:
        """Interrupt the driver once, and give it the time to say so."""
        if not mark.exists():
            mark.touch()
            os.kill(driver, signal.SIGINT)
            time.sleep(3.0)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        return {"size": outputs.abs().mean()}


class Slow(Small):
    """Takes a second for a step, or for ever once there is a file `stuck`."""

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        while (Path(hp["folder"]) / "stuck").exists():
            time.sleep(0.1)
        time.sleep(1.0)
        return inputs


class Raises(Small):
    """On rank 1 alone, in its second step."""

    calls = 0

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import torch.distributed as dist

        self.calls += 1
        if self.calls > 2 and dist.get_rank() == 1:
            raise ValueError("this training was meant to fail")
        return inputs


class Normed(Small):
    """Cannot be trained on a single sample."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        hidden = hp["hidden"]
        return nn.Sequential(nn.Linear(64, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 10))


class Contrastive(Small):
    """Compares the samples of a batch with each other."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        unit = nn.functional.normalize(outputs, dim=1)
        return nn.functional.cross_entropy(unit @ unit.T / 0.1, torch.arange(len(unit)))


class KerasSummed(KerasExperiment):
    """Its loss is a sum, and does not say so."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((64,)), keras.layers.Dense(10)])

    def loss(self, outputs: Any, targets: Any) -> Any:
        import keras

        return keras.ops.sum(keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True))


class Precise(Small):
    """Has more validation samples than a batch of an evaluation, and a metric that is no mean over samples."""

    def data(self) -> Splits:
        part = few()
        inputs, targets = np.asarray(part.train_inputs), np.asarray(part.train_targets)
        return Splits(inputs, targets, np.tile(inputs, (6, 1)), np.tile(targets, 6))

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        third = targets == 3
        hits = (outputs.argmax(1) == targets).float()
        return super().metrics(outputs, targets) | {"precision": hits[third].mean()}


class Named(TorchExperiment):
    """Two inputs by name."""

    def data(self) -> Splits:
        return halves()

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Halves(hp["hidden"])


class NamedDiverges(Named):
    """From its second epoch on."""

    def loss(self, outputs: Any, targets: Any) -> Any:
        self.seen = getattr(self, "seen", 0) + 1
        return super().loss(outputs, targets) * (float("nan") if self.seen > 12 else 1.0)


class Halves(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(32, hidden), nn.Linear(32, hidden), nn.Linear(hidden, 10)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.left(left) + self.right(right)))  # type: ignore[no-any-return]
