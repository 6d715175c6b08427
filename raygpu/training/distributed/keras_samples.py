"""The samples that each device of a process trains on in a step: chosen on the device, or read by the process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from raygpu.training.keras.data import DeviceData, ReadData, chosen_rows
from raygpu.training.keras.quiet_import import tf

Span = tuple[int, int]
"""Index of a part's first sample in the epoch's order, and its number of samples."""
ByDevice = Callable[[Sequence[Any]], Any]
"""Distributes one value, or a structure of values, to each device of this process."""


class SamplesOnDevices:
    """Samples in memory: all of them are on each device."""

    def __init__(self, data: DeviceData, devices: Sequence[str], by_device: ByDevice) -> None:
        self._by_device = by_device
        self._parts = [data.parts]
        """Inputs and targets, by device."""
        self._order: Any = None
        for device in devices[1:]:
            with tf.device(device):
                self._parts.append(tf.nest.map_structure(tf.identity, data.parts))

    def begin(self, epoch: int, order: np.ndarray, spans: Iterable[Span]) -> None:
        """Begin an epoch, or go on in it with another split. order: samples, int64. spans: of the steps to come, those
        of the devices one after the other."""
        self._order = tf.constant(order)

    def given(self, spans: Sequence[Span]) -> tuple[Any, ...]:
        """Return what `chosen` needs of a step. spans: of each device."""
        return self._order, self._by_device([tf.constant(span, tf.int64) for span in spans])

    def chosen(self, place: int, order: Any, span: Any) -> tuple[Any, Any]:
        """Return inputs and targets of a part of a batch; traced. place: of the device in this process."""
        rows = order[span[0] : span[0] + span[1]]
        inputs, targets = (chosen_rows(part, rows) for part in self._parts[place])
        return inputs, targets


class SamplesRead:
    """Samples of data sets, which a thread of this process reads a few batches ahead for all its devices."""

    def __init__(self, data: ReadData, by_device: ByDevice) -> None:
        self._data, self._by_device = data, by_device
        self._order = np.empty(0, np.int64)

    def begin(self, epoch: int, order: np.ndarray, spans: Iterable[Span]) -> None:
        """Begin to read. See `SamplesOnDevices.begin`."""
        self._order = order
        self._data.begin(epoch, (order[first : first + size] for first, size in spans))

    def given(self, spans: Sequence[Span]) -> tuple[Any, ...]:
        """Return the samples of each device. Raises SampleError. See `SamplesOnDevices.given`."""
        return (self._by_device([self._data.read(self._order[first : first + size]) for first, size in spans]),)

    def chosen(self, place: int, samples: Any) -> tuple[Any, Any]:
        """Return inputs and targets of a part of a batch; traced."""
        inputs, targets = tf.nest.map_structure(tf.identity, samples)
        return inputs, targets
