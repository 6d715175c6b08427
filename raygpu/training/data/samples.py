"""Samples of a map-style data set: each is read when it is needed, with random numbers of its own.

    samples = Samples(dataset, "train", Reading(), len(dataset))
    inputs, targets = samples.batch(rows, epoch)         # each by name, "" for a single one

What a sample is depends on its number and the epoch alone: the global generators of Python, NumPy and torch are seeded
with both before it is read. So it is the same in every process, for every trial, and in whatever order it is read.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from raygpu.errors import one_line
from raygpu.training.data.fields import Batch, Fields, SampleError, fields_of, parts_of
from raygpu.training.data.generators import generators_kept, seed_generators
from raygpu.training.data.sample_cache import Form, SampleCache

FEW = 1024
"""Number of samples that are held, at most, for another look at them."""
Forms = tuple[dict[str, Form], dict[str, Form]]
"""Forms of the inputs' and of the targets' fields, by name."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The way in which samples are read."""

    targets: tuple[str, ...] = ()
    """Names of the targets among a sample's fields, for samples that are mappings."""
    transform: Callable[[Any], Any] | None = None
    """Function of a sample's inputs, as torch tensors, that is called at each read, after the cache."""
    collate_fn: Callable[[list[Any]], Any] | None = None
    """Function that makes a batch of samples; None stacks their fields."""
    cache: bool | None = None
    """Whether decoded samples are kept on the node's disk; None decides by what reading one costs."""
    loader: Mapping[str, Any] = field(default_factory=dict)
    """Options of `torch.utils.data.DataLoader`."""


class Late:
    """A value that is unpickled at its first use: by then a worker can import the modules of the user's code."""

    def __init__(self, value: Any, pickled: bytes = b"") -> None:
        self._value, self._pickled = value, pickled

    @property
    def value(self) -> Any:
        """The value itself."""
        if self._value is None:
            self._value = pickle.loads(self._pickled)
        return self._value

    @property
    def pickled(self) -> bytes:
        """The value as it is sent to workers, each of which has a copy of its own."""
        if not self._pickled:
            self._pickled = cloudpickle.dumps(self._value)
        return self._pickled

    def __reduce__(self) -> tuple[Any, ...]:
        return Late, (None, self.pickled)


class Samples:
    """The samples of one part of the data: `train`, `validation` or `test`."""

    def __init__(self, dataset: Any, part: str, reading: Reading, count: int) -> None:
        """Wrap a map-style data set of `count` samples. part: its name in messages."""
        self._late = Late((dataset, reading))
        self.part, self.count = part, count
        self.folder = os.getcwd()
        """The working directory in which the data set was made, and is read."""
        self.name = str(secrets.randbits(60))
        """Name of its cache on every node."""
        self.is_random = True
        """Whether reading a sample draws random numbers, and each is seeded; else a batch is, in case one does."""
        self.decoded: Forms | None = None
        """Forms of the samples in the cache; None before they are known, and without a cache."""
        self.notes: tuple[str, ...] = ()
        """Lines for a person on how the samples are read."""
        self._cache: SampleCache | None = None
        self._latest: tuple[Any, Batch] | None = None

    @property
    def dataset(self) -> Any:
        """The data set itself."""
        return self._late.value[0]

    @property
    def reading(self) -> Reading:
        """The way in which the samples are read."""
        reading: Reading = self._late.value[1]
        return reading

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": None, "_latest": None}

    @property
    def num_bytes(self) -> int:
        """Bytes that the data set takes in each process that reads it."""
        return len(self._late.pickled)

    def sharing(self, reading: Reading, part: str) -> Samples:
        """Return the same data set's samples, read in another way, with the same cache."""
        other = Samples(self.dataset, part, reading, self.count)
        other.folder, other.name, other.is_random, other.decoded = self.folder, self.name, self.is_random, self.decoded
        return other

    @property
    def is_ready(self) -> bool:
        """Whether all samples can be taken from the cache as they are, which needs no processes beside the training."""
        cache = self._opened()
        return cache is not None and self.reading.transform is None and cache.is_complete

    def batch(self, rows: Sequence[int] | np.ndarray, epoch: int) -> Batch:
        """Return the inputs and targets of these samples in an epoch, each array (samples, ...).

        The process' own random state is as before. Raises SampleError.
        """
        cache, reading = self._opened(), self.reading
        if cache is not None and reading.transform is None and all(map(cache.has, rows)):
            return self._parted(cache.read(rows))
        with generators_kept(), self._in_folder():
            if not self.is_random:
                seed_generators(epoch, int(rows[0]))
            if reading.collate_fn is not None:
                return self._collated([self.item(int(row), epoch) for row in rows])
            return self._stacked(rows, [self._sample(int(row), epoch) for row in rows])

    def batch_again(self, rows: np.ndarray, epoch: int) -> Batch:
        """Return the result of `batch`; that of the latest call, if it was for the same samples, few of them."""
        if len(rows) > FEW:
            return self.batch(rows, epoch)
        key = epoch, rows.tobytes()
        if self._latest is None or self._latest[0] != key:
            self._latest = key, self.batch(rows, epoch)
        return self._latest[1]

    def item(self, row: int, epoch: int) -> Any:
        """Return what the data set has for a sample. Raises SampleError."""
        if self.is_random:
            seed_generators(epoch, row)
        try:
            return self.dataset[row]
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{self._where(row)} cannot be read: {one_line(error)}") from error

    def fields(self, row: int, epoch: int) -> Batch:
        """Return one sample's fields, as the data set has them. Raises SampleError."""
        return parts_of(self.item(row, epoch), self.reading.targets, self._where(row))

    def _opened(self) -> SampleCache | None:
        """Return the cache of decoded samples; None without one, as where this node has no room for it."""
        if self.decoded is not None and self._cache is None:
            try:
                forms = [form for part in self.decoded for form in part.values()]
                self._cache = SampleCache.open(self.name, self.count, forms)
            except OSError:
                self.decoded = None
        return self._cache

    @contextlib.contextmanager
    def _in_folder(self) -> Iterator[None]:
        """Read with the working directory in which the data set was made, for its relative paths."""
        if os.getcwd() == self.folder or not Path(self.folder).is_dir():
            yield
            return
        with contextlib.chdir(self.folder):
            yield

    def _sample(self, row: int, epoch: int) -> Batch:
        """Return one sample's fields, from the cache if it has them; transformed."""
        cache = self._opened()
        if cache is not None and cache.has(row):
            inputs, targets = self._parted([each[0] for each in cache.read([row])])
        else:
            inputs, targets = self.fields(row, epoch)
            if cache is not None:
                assert self.decoded is not None
                self._require_forms(row, (inputs, targets), self.decoded)
                cache.write(row, [*inputs.values(), *targets.values()])
        return (inputs if self.reading.transform is None else self._transformed(row, epoch, inputs)), targets

    def _transformed(self, row: int, epoch: int, inputs: Fields) -> Fields:
        import torch

        assert self.reading.transform is not None
        seed_generators(epoch, row, stage=1)  # whether or not the sample came from the cache
        made = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        where = f"transform() of {self._where(row)}"
        try:
            found = self.reading.transform(made[""] if list(made) == [""] else made)
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{where} failed: {one_line(error)}") from error
        return fields_of(found, where)

    def _parted(self, fields: Sequence[np.ndarray]) -> Batch:
        """Return fields of the cache as inputs and targets."""
        assert self.decoded is not None
        inputs, targets = self.decoded
        return dict(zip(inputs, fields, strict=False)), dict(zip(targets, fields[len(inputs) :], strict=True))

    def _stacked(self, rows: Sequence[int] | np.ndarray, samples: Sequence[Batch]) -> Batch:
        first: Forms = forms_of(samples[0])
        for row, sample in zip(rows, samples, strict=True):
            self._require_forms(int(row), sample, first)
        inputs, targets = ({name: np.stack([each[i][name] for each in samples]) for name in first[i]} for i in (0, 1))
        return inputs, targets

    def _require_forms(self, row: int, sample: Batch, wanted: Forms) -> None:
        """Raise SampleError if a sample's form is not the wanted one."""
        if forms_of(sample) != wanted:
            raise SampleError(
                f"{self._where(row)} is {_described(forms_of(sample))}, and others are {_described(wanted)}: bring them"
                " to one form, or give dataset_splits a collate_fn"
            )

    def _collated(self, items: list[Any]) -> Batch:
        """Return a batch that the user's own function makes of samples."""
        where = f"collate_fn() of {len(items)} {self.part} samples"
        assert self.reading.collate_fn is not None
        try:
            made = self.reading.collate_fn(items)
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{where} failed: {one_line(error)}") from error
        batch = parts_of(made, self.reading.targets, where)
        lengths = {len(array) if array.ndim else 0 for part in batch for array in part.values()}
        if lengths != {len(items)}:
            raise SampleError(f"{where} has returned arrays of {sorted(lengths)}: the first axis counts the samples")
        return batch

    def _where(self, row: int) -> str:
        return f"sample {row} of the {self.part} data"


def forms_of(sample: Batch) -> Forms:
    """Return the forms of one sample's fields."""
    inputs, targets = ({name: Form(array.dtype, array.shape) for name, array in part.items()} for part in sample)
    return inputs, targets


def _described(forms: Forms) -> str:
    """Return forms in words: `inputs uint8 (3, 32, 32), targets int64 ()`."""
    return ", ".join(
        f"{part}{f'[{name!r}]' if name else ''} {form.dtype} {form.shape}"
        for part, fields in zip(("inputs", "targets"), forms, strict=True)
        for name, form in fields.items()
    )
