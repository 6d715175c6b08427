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
    """The seconds of a device's own work in each step, from the end of one synchronisation to the start of the next.

    On a GPU by events in its stream, read once the device has reached them.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._began: Any = None
        self._ended: Any = None
        self._laps: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def restart(self) -> None:
        """Begin a lap; the device is idle."""
        self._began = self._now()

    def mark(self) -> None:
        """Mark the end of the device's own work."""
        self._ended = self._now()

    def lap(self, *, whole: bool) -> None:
        """End a lap: the other devices have finished, too. whole: whether it was a whole batch, and counts."""
        if whole:
            self._laps.append((self._began, self._ended))
        self._began = self._now()

    def seconds(self) -> list[float]:
        """Return the seconds of each lap since the last call; on a GPU, wait for it first."""
        laps, self._laps = self._laps, []
        if self._cuda:
            return [began.elapsed_time(ended) / 1000 for began, ended in laps]
        return [ended - began for began, ended in laps]
