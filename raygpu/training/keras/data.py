"""The data of a Keras training: arrays on its device, or samples that are read while it goes on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np

from raygpu.errors import one_line
from raygpu.experiment import Arrays, named, reads_later, take
from raygpu.training.data.columns import Column, columns_of
from raygpu.training.data.fields import SampleError, unnamed
from raygpu.training.keras.quiet_import import tf

READ_AHEAD = 2
"""Batches that are read before they are asked for."""


def data_part(inputs: Arrays, targets: Arrays) -> DeviceData | ReadData:
    """Return the training or the validation data for the steps of a training."""
    return ReadData(inputs, targets) if reads_later(inputs) else DeviceData(inputs, targets)


class DeviceData:
    """Inputs and targets on the device that TensorFlow chooses: the first GPU that it sees, or the CPU."""

    def __init__(self, inputs: Arrays, targets: Arrays) -> None:
        self.parts = tensors(inputs), tensors(targets)

    def begin(self, epoch: int, batches: Iterable[np.ndarray]) -> None:
        """Do nothing: all samples are there."""

    def chosen(self, rows: Any) -> tuple[Any, Any]:
        """Return inputs and targets of these samples, a slice or indices; traced."""
        inputs, targets = (chosen_rows(part, rows) for part in self.parts)
        return inputs, targets

    @property
    def tensors(self) -> list[Any]:
        """All tensors."""
        return [tensor for part in self.parts for tensor in (part.values() if isinstance(part, dict) else [part])]

    def take_waited(self) -> float | None:
        """Return None: no sample is waited for."""
        return None

    def fault(self, error: Exception) -> Exception:
        """Return the error itself: no sample is read."""
        return error

    def close(self) -> None:
        """Do nothing: the tensors go with their last use."""


class ReadData:
    """Samples of data sets, which a thread reads a few batches ahead of the training's steps.

    A step is traced once; it asks for its samples by a call of Python from the graph.
    """

    tensors: tuple[Any, ...] = ()
    """None: nothing stays on the device."""

    def __init__(self, inputs: Arrays, targets: Arrays) -> None:
        self._parts = [named(inputs), named(targets)]
        (self._column, *_) = columns_of(inputs)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="read-samples")
        self._epoch = 1
        self._to_read: Iterator[np.ndarray] = iter(())
        self._read: deque[tuple[np.ndarray, Future[list[np.ndarray]]]] = deque()
        """Batches that are read, or being read, in the order of the steps."""
        self._error: SampleError | None = None
        self._waited_s = 0.0

    def begin(self, epoch: int, batches: Iterable[np.ndarray]) -> None:
        """Begin to read the batches of an epoch, in their order."""
        self._drop()
        self._epoch, self._to_read = epoch, iter(batches)
        self._go_on(READ_AHEAD)

    def chosen(self, rows: Any) -> tuple[Any, Any]:
        """Return inputs and targets of these samples, a slice or indices; traced."""
        if isinstance(rows, slice):
            rows = tf.range(rows.start, rows.stop)
        arrays = [array for part in self._parts for array in part.values()]
        read = tf.numpy_function(self._next, [tf.cast(rows, tf.int64)], [tf.as_dtype(array.dtype) for array in arrays])
        fixed = self._column.samples.reading.collate_fn is None
        for tensor, array in zip(read, arrays, strict=True):
            tensor.set_shape([None, *(array.shape[1:] if fixed else [None] * (array.ndim - 1))])
        return self._in_parts(read)

    def read(self, rows: np.ndarray) -> tuple[Any, Any]:
        """Return inputs and targets of these samples as tensors; not traced. Raises SampleError."""
        try:
            return self._in_parts(map(tf.constant, self._next(rows)))
        except Exception as error:
            raise self.fault(error) from error

    def _in_parts(self, fields: Iterable[Any]) -> tuple[Any, Any]:
        """Return inputs and targets, from all fields in a row."""
        field_iterator = iter(fields)
        inputs, targets = ({name: next(field_iterator) for name in part} for part in self._parts)
        return unnamed(inputs), unnamed(targets)

    def take_waited(self) -> float | None:
        """Return the seconds that the training has waited for samples since the last call."""
        seconds, self._waited_s = self._waited_s, 0.0
        return seconds

    def fault(self, error: Exception) -> Exception:
        """Return the error of a sample that could not be read, in the place of TensorFlow's own around it."""
        return error if self._error is None else self._error

    def close(self) -> None:
        """End the thread."""
        self._drop()
        self._thread.shutdown()

    def _next(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the fields of these samples, which were read ahead if they are the next batch."""
        started = time.perf_counter()
        try:
            if self._read and np.array_equal(self._read[0][0], rows):
                _, under_way = self._read.popleft()
                self._go_on(1)
                fields = under_way.result()
            else:
                fields = self._thread.submit(self._fields, rows, self._epoch).result()
        except Exception as error:
            self._error = error if isinstance(error, SampleError) else SampleError(one_line(error))
            raise
        self._waited_s += time.perf_counter() - started
        return fields

    def _go_on(self, count: int) -> None:
        for rows in islice(self._to_read, count):
            self._read.append((rows, self._thread.submit(self._fields, rows, self._epoch)))

    def _drop(self) -> None:
        """Forget what is read for steps that will not come."""
        self._to_read = iter(())
        for _, under_way in self._read:
            under_way.cancel()
        self._read.clear()

    def _fields(self, rows: np.ndarray, epoch: int) -> list[np.ndarray]:
        """Return the fields of these samples, of the number types of the splits."""
        batch = self._column.samples.batch(self._column.absolute(rows), epoch)
        arrays: list[Any] = [array for part in self._parts for array in part.values()]
        fields = (batch[a.part][a.name] if isinstance(a, Column) else np.asarray(take(a, rows)) for a in arrays)
        return [read.astype(array.dtype, copy=False) for read, array in zip(fields, arrays, strict=True)]


def tensors(arrays: Arrays) -> Any:
    """Copy arrays to the device that TensorFlow chooses: the first GPU that it sees, or the CPU."""
    if isinstance(arrays, Mapping):
        return {name: tf.constant(array) for name, array in arrays.items()}
    return tf.constant(arrays)


def chosen_rows(given: Any, rows: Any) -> Any:
    """Select samples of one tensor or of each named one. rows: a slice or indices."""
    if isinstance(given, dict):
        return {name: chosen_rows(tensor, rows) for name, tensor in given.items()}
    return given[rows] if isinstance(rows, slice) else tf.gather(given, rows)
