"""A field of a data set's samples with the interface of an array, as far as samples are taken from it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import copy as shallow_copy
from typing import Any

import numpy as np

from raygpu.errors import BadInput
from raygpu.experiment import Arrays, Splits, named
from raygpu.planning.batches import epoch_order
from raygpu.training.data.samples import Samples
from raygpu.training.data.stream import Stream

ORDER_SEED = 0
"""Seed of the order of samples that are read: one for all trials, which then share each batch."""


class Column:
    """One field of samples that are read when they are taken: `column[rows]` is an array (rows, ...).

    Its own reads are those of epoch 1. `shape` and `dtype` are those of the first look; with a `collate_fn`, other
    samples may have other shapes.
    """

    def __init__(
        self,
        samples: Samples,
        part: int,
        name: str,
        like: np.ndarray,
        rows: np.ndarray | None = None,
        listed: np.ndarray | None = None,
    ) -> None:
        """part: 0 of the inputs, 1 of the targets. like: the field of some samples. rows: the samples; None for all.

        listed: the data set's own list of this field, of all samples, by which these may be stratified; it is never
        trained on.
        """
        self.samples, self.part, self.name, self.rows, self._listed = samples, part, name, rows, listed
        self.dtype, self._sample_shape = like.dtype, like.shape[1:]
        self.is_converted = False
        """Whether `astype` has asked for another number type than that of the data set."""

    def __len__(self) -> int:
        return self.samples.count if self.rows is None else len(self.rows)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of samples, and the shape of one."""
        return len(self), *self._sample_shape

    @property
    def listed(self) -> np.ndarray | None:
        """The data set's own list of this field, of these samples; None without one."""
        return self._listed if self._listed is None or self.rows is None else self._listed[self.rows]

    @property
    def in_order(self) -> bool:
        """Whether the samples are a stream's: a later one costs all before it."""
        return isinstance(self.samples, Stream)

    @property
    def ndim(self) -> int:
        """Number of axes, with that of the samples."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that all samples would take."""
        return self.dtype.itemsize * math.prod(self.shape)

    def is_read_with(self, other: Column) -> bool:
        """Return whether both are fields of the same samples."""
        rows, others = self.rows, other.rows
        same = rows is others or (rows is not None and others is not None and np.array_equal(rows, others))
        return same and self.samples is other.samples

    def absolute(self, rows: np.ndarray | slice) -> np.ndarray:
        """Return the data set's numbers of these samples."""
        if self.rows is not None:
            return self.rows[rows]
        if isinstance(rows, np.ndarray) and rows.dtype.kind in "iu":
            return np.where(rows < 0, rows + len(self), rows)
        return np.arange(len(self))[rows]

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, rows: Any) -> np.ndarray:
        if isinstance(rows, tuple):
            raise TypeError(f"read [{', '.join(map(str, rows))}]; samples of a data set are chosen by one index")
        chosen = self.absolute(rows if isinstance(rows, slice) else np.atleast_1d(rows))
        array = self.samples.batch_again(chosen)[self.part][self.name].astype(self.dtype)
        return array[0] if np.ndim(rows) == 0 and not isinstance(rows, slice) else array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Read all samples."""
        return np.asarray(self[:], dtype)

    def subset(self, rows: np.ndarray | slice) -> Column:
        """Return some of the samples, which are not read by this."""
        chosen = shallow_copy(self)
        chosen.rows = self.absolute(rows)
        return chosen

    def astype(self, dtype: Any, *, copy: bool = False) -> Column:
        """Return the same samples, converted when they are read."""
        column = shallow_copy(self)
        column.dtype, column.is_converted = np.dtype(dtype), True
        return column


def reading_notes(splits: Splits) -> list[str]:
    """Return lines for a person on how samples are read; none for arrays. Raises BadInput as `require_readable`."""
    require_readable(splits)
    parts = (splits.train_inputs, splits.validation_inputs, splits.test_inputs)
    notes_by_part = [column.samples.notes for part in parts if part is not None for column in columns_of(part)[:1]]
    return list(dict.fromkeys(note for notes in notes_by_part for note in notes))


def require_readable(splits: Splits) -> None:
    """Raise BadInput for columns that one training cannot read: those of a part need the same samples, and all parts or
    none have inputs that are read."""
    parts = {
        "train": (splits.train_inputs, splits.train_targets),
        "validation": (splits.validation_inputs, splits.validation_targets),
        "test": (splits.test_inputs, splits.test_targets),
    }
    read = dict[str, bool]()
    for part, (inputs, targets) in parts.items():
        if inputs is None or targets is None:
            continue
        columns, read[part] = [*columns_of(inputs), *columns_of(targets)], bool(columns_of(inputs))
        if not all(each.is_read_with(columns[0]) for each in columns):
            raise BadInput(f"data: the {part} columns are of different data sets or samples: give those of one")
        if columns and not read[part]:
            raise BadInput(f"data: the {part} targets are of dataset_splits, and its inputs are not: give both of it")
    if len(set(read.values())) > 1:
        names = (" and ".join(part for part, each in read.items() if each == kind) for kind in (True, False))
        raise BadInput("data: {} of dataset_splits, and {} of arrays: give all parts as one of both".format(*names))


def order_of_reading(column: Column, epoch: int, per_epoch: int) -> np.ndarray:
    """Return the training samples of an epoch in their order, int64 (per_epoch,): the same for all trials; of a stream
    in its own. column: one of the training data's."""
    if column.in_order:
        return np.arange(len(column))
    return epoch_order(ORDER_SEED, epoch, len(column), per_epoch)


def columns_of(arrays: Arrays) -> list[Column]:
    """Return the columns among the arrays: those that are read lazily."""
    fields: list[Any] = list(named(arrays).values())
    return [array for array in fields if isinstance(array, Column)]
