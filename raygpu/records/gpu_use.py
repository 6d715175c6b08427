"""The use of a sweep's GPUs: who holds which share of which, and the samples trained there."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence

from raygpu.records.device import Device

RATE_S = 5.0
"""Seconds over which samples are counted for the throughput of trials that have not reported yet."""


class GpuUse:
    """Shares of GPUs that Tune trials hold, and samples by GPU. Not safe to call from several threads."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = list(devices)
        self.used: set[int] = set()
        """Indices of the GPUs that trials have reported from, since this process began."""
        self.samples: dict[int, int] = {}
        """Samples trained on each GPU, of the whole run."""
        self._rates: dict[str, float] = {}
        """Training samples/s of all trials of each Tune trial together, over the epochs of its last report."""
        self.readings: dict[tuple[int, str], tuple[int, float]] = {}
        """Number and sum of each GPU's readings, by its index and their name, of the whole run."""
        self._newest: dict[int, deque[tuple[float, int]]] = {}
        """Moments and samples of each GPU's reports in the last RATE_S seconds."""
        self._held: dict[str, tuple[float, int | None]] = {}
        """Share of a GPU that each Tune trial holds, and the GPU's index."""
        self._charged: dict[str, float] = {}
        """Moment at which each Tune trial was last charged, by the monotonic clock."""

    def hold(self, holder: str, gpu_share: float) -> None:
        """Note that a Tune trial begins to hold its share of a GPU, whose index only its report may tell."""
        self._charged[holder] = time.monotonic()
        self._rates.pop(holder, None)
        self._held[holder] = gpu_share, self.devices[0].index if len(self.devices) == 1 else None

    def locate(self, holder: str, gpu_index: int | None, samples_per_s: float | None = None) -> None:
        """Note the GPU from which a Tune trial has reported, and its throughput there; None if it does not know."""
        if holder not in self._held:
            return
        if gpu_index is not None:
            self._held[holder] = self._held[holder][0], gpu_index
        if samples_per_s is not None:
            self._rates[holder] = samples_per_s

    def release(self, holder: str) -> None:
        """Note that a Tune trial has given its share back."""
        self._held.pop(holder, None)
        self._rates.pop(holder, None)

    def add(self, gpu_index: int, num_samples: int) -> None:
        """Count samples that were trained on a GPU."""
        self.samples[gpu_index] = self.samples.get(gpu_index, 0) + num_samples
        self._newest.setdefault(gpu_index, deque()).append((time.monotonic(), num_samples))

    def rate(self, gpu_index: int) -> float | None:
        """Return the samples/s of the Tune trials that hold a GPU, by their last reports; None without any.

        Trials of an array that have ended since count until its next report: how fast it is without them is not known.
        """
        rates = [rate for holder, rate in self._rates.items() if self._held[holder][1] == gpu_index]
        return sum(rates) if rates else None

    def recent_rate(self, gpu_index: int) -> float | None:
        """Return the samples/s that a GPU has trained in the last RATE_S seconds; None without a sample."""
        newest = self._newest.get(gpu_index, deque())
        while newest and newest[0][0] < time.monotonic() - RATE_S:
            newest.popleft()
        return sum(samples for _, samples in newest) / RATE_S if newest else None

    def read(self, gpu_index: int, readings: Mapping[str, float]) -> None:
        """Take in what was read of a GPU at one moment."""
        for name, value in readings.items():
            number, total = self.readings.get((gpu_index, name), (0, 0.0))
            self.readings[gpu_index, name] = number + 1, total + value

    def mean_reading(self, gpu_index: int, name: str) -> float | None:
        """Return the mean of a GPU's reading over the whole run; None without any."""
        number, total = self.readings.get((gpu_index, name), (0, 0.0))
        return total / number if number else None

    def shares(self) -> dict[int, float]:
        """Return the share of each GPU that Tune trials hold; those whose GPU is not known yet are left out."""
        shares = {device.index: 0.0 for device in self.devices}
        for share, index in self._held.values():
            if index in shares:
                shares[index] += min(1.0, share)  # of a trial on several GPUs, the first one is known
        return shares

    def charge(self, holder: str, gpu_index: int | None, gpu_share: float) -> float | None:
        """Return the RGU-hours since a Tune trial's last charge; None if the GPU's worth is not known."""
        now = time.monotonic()
        since = self._charged.get(holder, now)
        self._charged[holder] = now
        worth = next((device.rgu for device in self.devices if device.index == gpu_index), None)
        return None if worth is None else (now - since) / 3600 * gpu_share * worth

    def throughput(self, wall_s: float) -> dict[int, float | None]:
        """Return the training samples/s of each GPU over the whole run; None for a GPU without samples."""
        return {
            device.index: self.samples[device.index] / wall_s if device.index in self.samples else None
            for device in self.devices
        }
