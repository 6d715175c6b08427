"""Torch experiments that the fused sweeps of the tests train, each with one behaviour to be seen."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.digits import digits
from raygpu import Splits, TorchExperiment


class Small(TorchExperiment):
    """Few digits, a small network."""

    def data(self) -> Splits:
        return digits().part(0.2, seed=0)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, hp["hidden"]), nn.ReLU(), nn.Linear(hp["hidden"], 10))


class Failing(Small):
    """Trains, but cannot be evaluated."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        raise ValueError("no metric today")


class Recurrent(nn.Module):
    """The rows of an image as a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cells, self.last = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(x.view(-1, 8, 8))[0][:, -1])


class Mixed(Small):
    """Networks that can be fused, and one kind that cannot."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return Recurrent() if hp["kind"] == "lstm" else super().model(hp)


class _Later(nn.Linear):
    """Counts its training steps out of every look's sight, and does something else from the 30th on."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.__dict__["_count"] = io.BytesIO().write

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._count(b"1" * self.training)
        return super().forward(x if self._count.__self__.tell() < 30 else x.square())


class Later(Small):
    """An array counts steps of all its members, and a training alone its own."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return _Later()


class Picky(Mixed):
    """Metrics of the kind that can be fused raise for a member that learns nothing; they are numbers of Python, so each
    member's are its own."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.least = 0.0 if hp["kind"] == "lstm" else 0.2
        return super().model(hp)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        accuracy = (outputs.argmax(-1) == targets).float().mean().item()
        if accuracy < self.least and len(outputs) > 100:  # not in a dry run
            raise ValueError("this member was meant to fail")
        return {"accuracy": accuracy}


class Hanging(Small):
    """Its evaluation never ends for a member that learns nothing."""

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        accuracy = (outputs.argmax(-1) == targets).float().mean().item()
        while accuracy < 0.2 and len(outputs) > 100:  # not in a dry run
            time.sleep(1)
        return {"accuracy": accuracy}


class Disturbed(Small):
    """Its worker is killed after some epochs, once; after some more, the sweep's own process gets a Ctrl-C, once."""

    KILLED, INTERRUPTED = 9, 12
    """By number of evaluations."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        self.folder, self.driver = Path(hp["folder"]), int(hp["driver"])
        return super().model(hp)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        accuracy = (outputs.argmax(-1) == targets).float().mean().item()
        if self.folder.exists() and len(outputs) > 100:  # not in a dry run
            time.sleep(0.3)  # so that epochs are reported before it happens
            evaluations = self.folder / "evaluations"
            with evaluations.open("a") as file:
                file.write("x")
            number = evaluations.stat().st_size  # other trials may have added to it since
            if number >= self.KILLED and self._is_first("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
            if number >= self.INTERRUPTED and self._is_first("interrupted"):
                os.kill(self.driver, signal.SIGINT)
                time.sleep(60)
        return {"accuracy": accuracy}

    def _is_first(self, mark: str) -> bool:
        """Return whether no other process has made this mark before."""
        try:
            (self.folder / mark).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
