"""The speed of one rank: seconds of its own computation in each step, and what it has done since the last exchange."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class SinceExchange:
    """Work of a rank since the last exchange."""

    samples: int = 0
    part: int = 0
    """The samples of the largest part."""
    squares: list[torch.Tensor] = field(default_factory=list)
    wholes: list[torch.Tensor] = field(default_factory=list)
    shares: list[list[int]] = field(default_factory=list)


class Stopwatch:
    """Measures the seconds of a device's own work in each step, a lap; paused while it waits for other devices.

    On a GPU by events in its stream, read once the device has reached them.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._began: Any = None
        self._pieces: list[tuple[Any, Any]] = []
        """Beginning and end of each piece of work in this lap."""
        self._laps: list[list[tuple[Any, Any]]] = []

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """Begin a lap; the device is idle."""
        self._pieces = []
        self.go_on()

    def pause(self) -> None:
        """Mark the end of the device's own work: from here on it waits for the others."""
        self._pieces.append((self._began, self._now()))

    def go_on(self) -> None:
        """Mark that the other devices have finished, too."""
        self._began = self._now()

    def lap(self, *, whole: bool) -> None:
        """End a lap, after `pause`. whole: whether it was a whole batch, and counts."""
        if whole:
            self._laps.append(self._pieces)
        self.restart()

    def seconds(self) -> list[float]:
        """Return the seconds of each lap since the last call; on a GPU, wait for it first."""
        laps, self._laps = self._laps, []
        return [sum(self._seconds(*piece) for piece in lap) for lap in laps]

    def _seconds(self, began: Any, ended: Any) -> float:
        return began.elapsed_time(ended) / 1000 if self._cuda else ended - began
