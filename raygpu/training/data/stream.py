"""Samples of an iterable data set, which come in an order of its own: a sample's number is its place in an epoch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from raygpu.config.generators import seed_generators
from raygpu.errors import one_line
from raygpu.training.data.fields import SampleError
from raygpu.training.data.samples import ReadOptions, Samples


class Stream(Samples):
    """The samples of one part of the data, read from the beginning of each epoch on.

    `set_epoch(epoch)` of the data set, if it has that method as Hugging Face's do, is called before each epoch. Samples
    that are not asked for are read and dropped, as by a rank those of the others.
    """

    def __init__(self, dataset: Any, part: str, reading: ReadOptions, count: int) -> None:
        """Wrap an iterable data set. count: samples of an epoch."""
        super().__init__(dataset, part, reading, count)
        self.is_random = True
        self._iterator: Iterator[Any] | None = None
        self._at = 0, 0, 0
        """Process, epoch and place of the next sample of the iterator."""

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_iterator": None}

    def item(self, row: int, epoch: int) -> Any:
        """Return the sample at a place of an epoch; the one after the latest takes the least. Raises SampleError."""
        here = os.getpid()
        if self._iterator is None or self._at[:2] != (here, epoch) or row < self._at[2]:
            self._at = here, epoch, 0
            self._iterator = self._begun(epoch)
        while True:
            place = self._at[2]
            seed_generators(epoch, place)
            try:
                item = next(self._iterator)
            except StopIteration:
                self._iterator = None
                raise SampleError(
                    f"the {self.part} data has ended after {place:,} samples, and {self.count:,} were told"
                ) from None
            except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
                self._iterator = None
                raise SampleError(f"{self._where(place)} cannot be read: {one_line(error)}") from error
            self._at = here, epoch, place + 1
            if place == row:
                return item

    def _items(self, rows: Sequence[int] | np.ndarray, epoch: int) -> list[Any]:
        return [self.item(int(row), epoch) for row in rows]

    def _begun(self, epoch: int) -> Iterator[Any]:
        """Return an iterator from the beginning of an epoch on."""
        dataset = self.dataset
        self._dataset.used_by = os.getpid()
        seed_generators(epoch, 0, stage=2)
        try:
            if hasattr(dataset, "set_epoch"):
                dataset.set_epoch(epoch)
            return iter(dataset)
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"the {self.part} data cannot be read: {one_line(error)}") from error
