"""The inspection of a data set: the form of its samples, whether they are random, and whether a cache is worth it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from raygpu.config.generators import random_state_kept, state
from raygpu.errors import one_line
from raygpu.training.data.fields import Batch, equal
from raygpu.training.data.sample_cache import SampleCache
from raygpu.training.data.samples import LOOKS, ReadOptions, Samples, described, forms_of
from raygpu.training.data.stream import Stream

QUICK_S = 2e-4
"""Seconds to read a sample below which it is not worth a place in a cache."""
ROOM = 0.5
"""Share of a disk's free bytes that a cache may fill."""
LARGE = 2**28
"""Bytes of a data set's own from which the memory that it takes is told."""
GIB, MIB = 2**30, 2**20
REPEATED, TIMES, LOOK_S = 16, 3, 1.0
"""Number of samples that are read again before any is kept or is one of a share, the reads of each, and the seconds
that this may take: an augmentation may leave most samples as they are."""
DIFFER = "reading one again gives another one"
UNSEEDED = (
    "data: {part} samples differ when they are read again: they draw random numbers from other generators than those of"
    " random, numpy.random and torch, which are seeded for each sample; no two trainings see the same data"
)
COLLATING_DRAWS = (
    "data: collate_fn draws random numbers, and makes the validation and test samples too: what it draws for a batch of"
    " these is the same in each evaluation"
)


def inspect_dataset(
    dataset: Any, part: str, reading: ReadOptions, count: int | None, planned_bytes: int = 0
) -> tuple[Samples, Batch]:
    """Wrap a data set; return it with its first, middle and last sample, or the first ones of a stream.

    part: `train`, `validation` or `test`. count: samples of an epoch, of a data set without a length. planned_bytes: of
    the caches of other parts. Raises TypeError for what is no data set, ValueError for an empty one, and SampleError.
    """
    samples = _wrapped(dataset, part, reading, count)
    spread = (0, samples.count // 2, samples.count - 1)
    rows = sorted(set(range(min(3, samples.count)) if isinstance(samples, Stream) else spread))
    read_s = _read_alone(samples, rows)
    first, again = samples.learn(samples.batch(rows, 1)), samples.batch(rows, 1)
    if not equal(first, again):
        samples.notes = _unseeded(samples)
    else:
        samples.notes = tuple(_decide_on_cache(samples, rows, read_s, planned_bytes))
    if reading.collate_fn is not None and _collating_draws(samples, rows):
        samples.notes += (COLLATING_DRAWS,)
    try:
        num_bytes = samples.num_bytes
    except Exception as error:  # the user's object: whatever pickling raises
        raise TypeError(
            f"{part}: a {type(samples.dataset).__name__} cannot be sent to workers, as pickle does: {one_line(error)}"
        ) from error
    if num_bytes > LARGE:
        samples.notes += (
            f"data: the {part} data set takes {_size(num_bytes)} of memory in each process: where it holds its"
            " samples in memory, arrays (raygpu.Splits) are shared by all of them",
        )
    return samples, first


def _wrapped(dataset: Any, part: str, reading: ReadOptions, count: int | None) -> Samples:
    """Return the samples of a map-style or an iterable data set. Raises TypeError for others, and ValueError."""
    if isinstance(dataset, Samples):  # of another part
        return dataset.sharing(reading, part)
    kind = type(dataset)
    has = {name: hasattr(kind, name) for name in ("__getitem__", "__len__", "__iter__")}
    if kind.__name__ == "DataLoader":
        raise TypeError(
            f"{part}: a DataLoader; give its data set, and its options by name: dataset_splits(loader.dataset)"
        )
    if kind.__module__.startswith("ray.data"):
        raise TypeError(f"{part}: a {kind.__name__} of Ray Data; wanted: its rows, as raygpu.RayRows(dataset)")
    length = len(dataset) if has["__len__"] else count
    if has["__len__"] and count is not None:
        raise ValueError(f"num_samples: read {count} of {part}; a {kind.__name__} has a length of its own, {length}")
    if length == 0:
        raise ValueError(f"{part}: a {kind.__name__} without a sample")
    if has["__getitem__"] and has["__len__"] and not _is_torch_stream(dataset):
        return Samples(dataset, part, reading, len(dataset))
    if not has["__iter__"]:
        raise TypeError(
            f"{part}: a {kind.__name__}; wanted: a data set with __getitem__ and __len__, or a stream with __iter__"
        )
    if hasattr(kind, "__next__"):
        raise TypeError(f"{part}: a {kind.__name__} can be read once; wanted: an object whose __iter__ begins anew")
    if length is None:
        raise ValueError(
            f"{part}: a {kind.__name__} has no length; tell the samples of an epoch as num_samples={{'{part}': 10_000}}"
        )
    return Stream(dataset, part, reading, length)


def _is_torch_stream(dataset: Any) -> bool:
    """Return whether this is an `IterableDataset` of torch, which inherits a `__getitem__` that raises."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and isinstance(dataset, torch_data.IterableDataset)


def _read_alone(samples: Samples, rows: list[int]) -> float:
    """Return the least seconds to read one of these samples; note whether that draws random numbers."""
    seconds, samples.is_random = [], isinstance(samples, Stream)
    with random_state_kept():
        for row in rows:
            started = time.perf_counter()
            samples.item(row, 1)
            seconds.append(time.perf_counter() - started)
    return min(seconds)


def _unseeded(samples: Samples) -> tuple[str, ...]:
    """Note that samples draw random numbers that nobody seeds; return a line for a person. Raises ValueError if a cache
    was asked for."""
    samples.is_random = True
    _without(samples.reading, samples.part, DIFFER)
    return (UNSEEDED.format(part=samples.part),)


def read_again(samples: Samples) -> tuple[bool, list[Batch]]:
    """Read the first samples several times, of those that LOOK_S allows; note whether that draws random numbers that
    are seeded. Return whether one differs when it is read again, and what was read at first."""
    end, first_reads = time.perf_counter() + LOOK_S, list[Batch]()
    with random_state_kept():
        for row in range(min(REPEATED, samples.count)):
            first_reads.append(_read_one(samples, row))
            for _ in range(TIMES - 1):
                if time.perf_counter() > end:
                    return False, first_reads
                if not equal(first_reads[-1], _read_one(samples, row)):
                    return True, first_reads
    return False, first_reads


def _read_one(samples: Samples, row: int) -> Batch:
    """Return one sample's fields; of samples that are made together a small batch, as some functions want two."""
    if samples.reading.collate_fn is None:
        return samples.fields(row, 1)
    return samples.batch(np.arange(row, min(row + 2, samples.count)), 1)


def _collating_draws(samples: Samples, rows: Sequence[int]) -> bool:
    """Return whether `collate_fn` draws random numbers, which are seeded, for a batch of these samples."""
    assert samples.reading.collate_fn is not None
    with random_state_kept():
        for _ in range(LOOKS):
            items = [samples.item(row, 1) for row in rows]
            before = state()
            samples.reading.collate_fn(items)
            if state() == before:
                return False
    return True


def _decide_on_cache(samples: Samples, rows: Sequence[int], read_s: float, planned_bytes: int) -> list[str]:
    """Give the samples a cache if that is possible, and asked for or worth it; return lines for a person.

    rows: samples whose forms are compared, beside those that are read again. read_s: seconds to read a sample.
    planned_bytes: of other parts' caches. Raises ValueError for a cache that is asked for and impossible.
    """
    reading, part = samples.reading, samples.part
    if samples.decoded is not None:
        return []  # the cache of another part, with the same data set
    if reading.cache is False or (reading.cache is None and read_s < QUICK_S):
        return []
    if isinstance(samples, Stream):
        return _without(reading, part, "a stream is read anew in each epoch") if reading.cache else []
    if reading.collate_fn is not None:
        return _without(reading, part, "collate_fn makes batches of whole samples, which need not have one form")
    if samples.is_told_epochs:
        return _without(reading, part, "set_epoch() of the data set may change them")
    differs, first_reads = read_again(samples)
    if differs:
        return [*_unseeded(samples)]
    if samples.is_random:
        return _without(
            reading, part, "reading one draws random numbers; what is random can come after the cache, as transform="
        )
    forms, *others = map(forms_of, [*first_reads, *(samples.fields(row, 1) for row in rows)])
    if (other := next((each for each in others if each != forms), None)) is not None:
        return _without(reading, part, f"they have several forms, as {described(forms)} and {described(other)}")
    num_bytes = samples.cache_bytes(forms)
    try:
        free = SampleCache.free_bytes()
    except OSError as error:
        return _without(reading, part, str(error))
    size = _size(num_bytes)
    if num_bytes + planned_bytes > ROOM * free:
        beside = f" beside {_size(planned_bytes)} of other parts" if planned_bytes else ""
        return _without(
            reading,
            part,
            f"they need {size}{beside}, and half of the disk's {free / GIB:.1f} GiB that are free is allowed",
        )
    samples.decoded = forms
    return [f"data: {part} samples take {1000 * read_s:.1f} ms to read; once read, they are kept on each node ({size})"]


def _size(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= 0.1 * GIB else f"{max(0.1, num_bytes / MIB):.1f} MiB"


def _without(reading: ReadOptions, part: str, why: str) -> list[str]:
    """Return a line on samples that are read anew in each epoch. Raises ValueError if a cache was asked for."""
    if reading.cache:
        raise ValueError(f"cache: read True; {part} samples cannot be kept: {why}")
    return [f"data: {part} samples are read anew in each epoch: {why}"]
