"""The speed of one rank: seconds of its own computation in each step, and what it has done since the last exchange."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch

MARGIN = 0.9
"""Share of the free memory that a rank's samples of a batch may fill."""


@dataclass(slots=True)
class SinceExchange:
    """Work of a rank since the last exchange."""

    samples: int = 0
    part: int = 0
    """The samples of the largest part."""
    squares: list[torch.Tensor] = field(default_factory=list)
    wholes: list[torch.Tensor] = field(default_factory=list)
    shares: list[list[int]] = field(default_factory=list)

    def most(self, device: torch.device) -> float:
        """Return the samples of a part that fit this device's memory, by the memory of the largest part."""
        if device.type != "cuda" or not self.part:
            return math.inf
        allocated_bytes = torch.cuda.memory_allocated(device)
        each = (torch.cuda.max_memory_allocated(device) - allocated_bytes) / self.part
        torch.cuda.reset_peak_memory_stats(device)
        free, _ = torch.cuda.mem_get_info(device)
        room = MARGIN * (free + torch.cuda.memory_reserved(device) - allocated_bytes)
        return math.inf if each <= 0 else room / each


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
