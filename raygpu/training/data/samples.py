"""Samples of a map-style data set: each is read when it is needed, with random numbers of its own.

    samples = Samples(dataset, "train", ReadOptions(), len(dataset))
    inputs, targets = samples.batch(rows, epoch)         # each by name, "" for a single one

What a sample is depends on its number and the epoch alone: the global generators of Python, NumPy and torch are seeded
with both before it is read. So it is the same in every process, for every trial, and in whatever order it is read.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np

from raygpu.config.generators import random_state_kept, seed_generators, state
from raygpu.errors import one_line
from raygpu.training.data.fields import Batch, Fields, SampleError, fields_of, parts_of, unnamed
from raygpu.training.data.sample_cache import Form, SampleCache

LOOKS = 3
"""Number of reads that must all change the random state before a sample counts as random: another thread may draw
during one of them, as the one that starts Ray does for a port."""
_told: dict[int, tuple[weakref.ref[Any], int]] = {}
"""Data sets by their ids, with the epoch that each was told last: beside the data set, which another part may read."""
FEW = 1024
"""Largest number of samples whose batch is kept for a repeated read."""
Forms = tuple[dict[str, Form], dict[str, Form]]
"""Forms of the inputs' and of the targets' fields, by name."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
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


class LazyUnpickled:
    """A value that is unpickled at its first use: by then a worker can import the modules of the user's code."""

    def __init__(self, value: Any, pickled: bytes = b"") -> None:
        self._value, self._pickled = value, pickled
        self.used_by: int | None = None
        """Process that has called the value's code last: files that it opened are shared by those that it forks."""

    @property
    def value(self) -> Any:
        """The value itself."""
        if self._value is None:
            self._value, self._pickled = pickle.loads(self._pickled), b""
        return self._value

    @property
    def num_bytes(self) -> int:
        """Bytes of the value as it is sent to workers, each of which has a copy of its own."""
        return len(self._pickled or cloudpickle.dumps(self._value))

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyUnpickled, (None, self._pickled or cloudpickle.dumps(self._value))


class Samples:
    """The samples of one part of the data: `train`, `validation` or `test`."""

    def __init__(self, dataset: Any, part: str, reading: ReadOptions, count: int) -> None:
        """Wrap a map-style data set of `count` samples. part: its name in messages."""
        self._dataset = dataset if isinstance(dataset, LazyUnpickled) else LazyUnpickled(dataset)
        self._reading = LazyUnpickled(reading)
        self.part, self.count = part, count
        self.folder = os.getcwd()
        """The working directory in which the data set was made, and is read."""
        self.name = str(secrets.randbits(60))
        """Name of its cache on every node."""
        self.is_random = True
        """Whether reading a sample draws random numbers: each is then seeded before it is read."""
        self.forms: Forms | None = None
        """Forms of the samples as a training gets them; None before they are known."""
        self.decoded: Forms | None = None
        """Forms of the samples in the cache; None before they are known, and without a cache."""
        self.notes: tuple[str, ...] = ()
        """Lines for a person on how the samples are read."""
        self._cache: SampleCache | None = None
        self._latest: tuple[bytes, Batch] | None = None

    @property
    def dataset(self) -> Any:
        """The data set itself."""
        return self._dataset.value

    @property
    def needs_training_process(self) -> bool:
        """Whether the data set can be read by the training's own process alone."""
        return getattr(self.dataset, "needs_training_process", False)

    @property
    def is_read_here(self) -> bool:
        """Whether this process has read samples of the data set, which may have opened its files."""
        return self._dataset.used_by == os.getpid()

    @property
    def reading(self) -> ReadOptions:
        """The way in which the samples are read."""
        reading: ReadOptions = self._reading.value
        return reading

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cache": None, "_latest": None}

    @property
    def num_bytes(self) -> int:
        """Bytes that the data set takes in each process that reads it."""
        return self._dataset.num_bytes

    def cache_bytes(self, forms: Forms | None) -> int:
        """Return the bytes of a cache of samples of these forms; 0 if there are no forms."""
        return self.count * sum(form.num_bytes for part in forms or () for form in part.values())

    def sharing(self, reading: ReadOptions, part: str) -> Samples:
        """Return the same data set's samples, read in another way, with the same cache."""
        other = Samples(self._dataset, part, reading, self.count)
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
        with random_state_kept(), self._in_folder():
            if reading.collate_fn is not None:
                return self._collated(int(rows[0]), epoch, self._items(rows, epoch))
            return self._stacked(rows, self._samples(rows, epoch))

    def learn(self, batch: Batch) -> Batch:
        """Take the forms of these samples as those of all; return the samples."""
        inputs, targets = ({name: Form(array.dtype, array.shape[1:]) for name, array in part.items()} for part in batch)
        self.forms = inputs, targets
        return batch

    def batch_again(self, rows: np.ndarray) -> Batch:
        """Return the result of `batch` in epoch 1; that of the latest call, if it was for the same samples, few of
        them."""
        if len(rows) > FEW:
            return self.batch(rows, 1)
        key = rows.tobytes()
        if self._latest is None or self._latest[0] != key:
            self._latest = key, self.batch(rows, 1)
        return self._latest[1]

    def item(self, row: int, epoch: int) -> Any:
        """Return what the data set has for a sample. Raises SampleError."""
        return self._items([row], epoch)[0]

    def _items(self, rows: Sequence[int] | np.ndarray, epoch: int) -> list[Any]:
        """Return what the data set has for these samples; if one draws random numbers, each is seeded before."""
        self._tell(epoch)
        for _ in range(0 if self.is_random else LOOKS):
            before = state()
            items = [self._read(int(row)) for row in rows]
            if state() == before:
                return items
        self.is_random = True
        items = []
        for row in rows:
            seed_generators(epoch, int(row))
            items.append(self._read(int(row)))
        return items

    def _tell(self, epoch: int) -> None:
        """Tell the data set another epoch by its `set_epoch`, if it has that: the same samples follow in every
        process."""
        for dataset in _with_epochs(self.dataset):
            reference, told = _told.get(id(dataset), (None, None))
            if reference is None or reference() is not dataset or told != epoch:
                self._tell_one(dataset, epoch)

    def _tell_one(self, dataset: Any, epoch: int) -> None:
        seed_generators(epoch, 0, stage=2)
        self._dataset.used_by = os.getpid()
        try:
            dataset.set_epoch(epoch)
        except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"set_epoch({epoch}) of the {self.part} data failed: {one_line(error)}") from error
        key = id(dataset)
        with contextlib.suppress(TypeError):  # one without weak references is told for each batch
            _told[key] = weakref.ref(dataset, lambda gone: _forget(key, gone)), epoch

    @property
    def is_told_epochs(self) -> bool:
        """Whether the data set has `set_epoch`, so that a sample may be another one in another epoch."""
        return bool(_with_epochs(self.dataset))

    def _read(self, row: int) -> Any:
        self._dataset.used_by = os.getpid()
        try:
            return self.dataset[row]
        except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{self._where(row)} cannot be read: {one_line(error)}") from error

    def fields(self, row: int, epoch: int) -> Batch:
        """Return one sample's fields, as the data set has them. Raises SampleError."""
        return self._parts(row, self.item(row, epoch))

    def _parts(self, row: int, item: Any) -> Batch:
        return parts_of(item, self.reading.targets, self._where(row))

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

    def _samples(self, rows: Sequence[int] | np.ndarray, epoch: int) -> list[Batch]:
        """Return the fields of each sample, from the cache as far as it has them; transformed."""
        cache = self._opened()
        if cache is None:
            samples = [self._parts(int(row), item) for row, item in zip(rows, self._items(rows, epoch), strict=True)]
        else:
            samples = [self._kept(cache, int(row), epoch) for row in rows]
        if self.reading.transform is None:
            return samples
        return [
            (self._transformed(int(row), epoch, inputs), targets)
            for row, (inputs, targets) in zip(rows, samples, strict=True)
        ]

    def _kept(self, cache: SampleCache, row: int, epoch: int) -> Batch:
        """Return one sample's fields from the cache, which gets them if need be; not those with random numbers, or of
        another form, which a transform may bring to that of the others."""
        if cache.has(row):
            return self._parted([each[0] for each in cache.read([row])])
        sample = self.fields(row, epoch)
        if not self.is_random and forms_of(sample) == self.decoded:
            parts = zip(self.decoded, sample, strict=True)
            cache.write(row, [fields[name] for forms, fields in parts for name in forms])
        return sample

    def _transformed(self, row: int, epoch: int, inputs: Fields) -> Fields:
        import torch

        assert self.reading.transform is not None
        seed_generators(epoch, row, stage=1)  # whether or not the sample came from the cache
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in inputs.items()}
        where = f"transform() of {self._where(row)}"
        try:
            transformed_inputs = self.reading.transform(unnamed(tensors))
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{where} failed: {one_line(error)}") from error
        return fields_of(transformed_inputs, where)

    def _parted(self, fields: Sequence[np.ndarray]) -> Batch:
        """Return fields of the cache as inputs and targets."""
        assert self.decoded is not None
        inputs, targets = self.decoded
        return dict(zip(inputs, fields, strict=False)), dict(zip(targets, fields[len(inputs) :], strict=True))

    def _stacked(self, rows: Sequence[int] | np.ndarray, samples: Sequence[Batch]) -> Batch:
        first: Forms = self.forms or forms_of(samples[0])
        for row, sample in zip(rows, samples, strict=True):
            self._require_forms(int(row), sample, first)
        inputs, targets = ({name: np.stack([each[i][name] for each in samples]) for name in first[i]} for i in (0, 1))
        return inputs, targets

    def _require_forms(self, row: int, sample: Batch, wanted: Forms) -> None:
        """Raise SampleError if a sample's form is not the wanted one."""
        if forms_of(sample) != wanted:
            other = ", or give dataset_splits a collate_fn" if self.reading.transform is None else " in transform"
            raise SampleError(
                f"{self._where(row)} is {described(forms_of(sample))}, and others are {described(wanted)}: bring them"
                f" to one form{other}"
            )

    def _collated(self, row: int, epoch: int, items: list[Any]) -> Batch:
        """Return a batch that the user's own function makes of samples; its arrays are copies. row: the first one."""
        where = f"collate_fn() of {len(items)} {self.part} samples"
        assert self.reading.collate_fn is not None
        seed_generators(epoch, row, stage=1)
        try:
            batch = self.reading.collate_fn(items)
        except Exception as error:  # the user's code: whatever it raises is the message
            raise SampleError(f"{where} failed: {one_line(error)}") from error
        inputs, targets = (
            {name: np.array(array) for name, array in part.items()}
            for part in parts_of(batch, self.reading.targets, where)
        )
        lengths = {len(array) if array.ndim else 0 for part in (inputs, targets) for array in part.values()}
        if lengths != {len(items)}:
            raise SampleError(f"{where} has returned arrays of {sorted(lengths)}: the first axis counts the samples")
        forms = forms_of((inputs, targets))
        if self.forms is not None and _types(forms) != _types(self.forms):
            raise SampleError(f"{where} has returned {described(forms)}, and at first {described(self.forms)}")
        return inputs, targets

    def _where(self, row: int) -> str:
        return f"sample {row} of the {self.part} data"


def _forget(key: int, gone: weakref.ref[Any]) -> None:
    """Forget a data set that no longer exists, unless another one has its id by now."""
    if key in _told and _told[key][0] is gone:
        del _told[key]


def _with_epochs(dataset: Any) -> list[Any]:
    """Return the data sets that have `set_epoch`: this one, or those from which a `Subset`, a `ConcatDataset` or a
    `StackDataset` of torch takes samples."""
    if callable(getattr(dataset, "set_epoch", None)):
        return [dataset]
    if not type(dataset).__module__.startswith("torch.utils.data"):
        return []
    parts = getattr(dataset, "datasets", None) or [getattr(dataset, "dataset", None)]
    parts = parts.values() if isinstance(parts, Mapping) else parts
    each = {id(found): found for part in parts if part is not None for found in _with_epochs(part)}
    return list(each.values())


def forms_of(sample: Batch) -> Forms:
    """Return the forms of one sample's fields."""
    inputs, targets = ({name: Form(array.dtype, array.shape) for name, array in part.items()} for part in sample)
    return inputs, targets


def _types(forms: Forms) -> list[dict[str, np.dtype]]:
    """Return the number types of fields; shapes may differ from batch to batch."""
    return [{name: form.dtype for name, form in part.items()} for part in forms]


def described(forms: Forms) -> str:
    """Return forms in words: `inputs uint8 (3, 32, 32), targets int64 ()`."""
    return ", ".join(
        f"{part}{f'[{name!r}]' if name else ''} {form.dtype} {form.shape}"
        for part, fields in zip(("inputs", "targets"), forms, strict=True)
        for name, form in fields.items()
    )
