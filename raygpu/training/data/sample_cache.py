"""Decoded samples in files on a node's disk, read by all processes that train on it.

    cache = SampleCache.open(name, count, forms)
    if not cache.has(row):
        cache.write(row, [image, label])
    images, labels = cache.read(rows)

Each field of the samples has a file with a record for every row. A sample is written by whichever process decodes it
first; its mark follows its records, so that no process reads half of one. The folder is deleted by the last process
that uses it, or by the next process of this user if that one was killed.
"""

from __future__ import annotations

import atexit
import fcntl
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from raygpu.records import scratch

MARKS = "marks"
"""File with a byte for each sample: 1 once it has been written."""
PARENT = "samples"
"""Folder of all caches, below that of this user's temporary files."""
RESERVE_BYTES, RESERVE_PART = 2**30, 0.1
"""Free space that is left to others, in bytes, and as a part of a small disk."""
PATIENCE_S = 1.0
"""Seconds for which a process that ends waits for others that end with it, to delete the files after the last."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a field, the same for each sample."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of one sample's field."""
        return self.dtype.itemsize * math.prod(self.shape)


class SampleCache:
    """The decoded samples of one data set on this node."""

    def __init__(self, folder: Path, lock: TextIOWrapper, count: int, forms: Sequence[Form]) -> None:
        self._folder, self._lock, self._forms = folder, lock, list(forms)
        self._pid = os.getpid()
        self._files = [_sized(folder / f"field-{i}", count * form.num_bytes) for i, form in enumerate(forms)]
        self._marks_file = _sized(folder / MARKS, count)
        os.posix_fallocate(self._marks_file, 0, count)  # a read of mapped memory without a place would kill the process
        # Written by `pwrite` alone: a write to mapped memory that the disk has no room for would kill the process.
        self._marks: np.ndarray = np.memmap(folder / MARKS, np.uint8, "r", shape=(count,))
        self.is_full = False
        """Whether nothing more is written, as the disk has little room left."""
        if multiprocessing.parent_process() is None:  # a process that reads for a training ends at once
            atexit.register(self.close, PATIENCE_S)

    @classmethod
    def open(cls, name: str, count: int, forms: Sequence[Form]) -> SampleCache:
        """Open the cache of this name, made if need be. name: begins with a digit. Raises OSError."""
        parent = scratch.private_folder(scratch.shared_folder() / PARENT)
        scratch.delete_abandoned(parent)
        with scratch.locked(parent):
            folder = scratch.private_folder(parent / name)
            lock = (folder / scratch.LOCK).open("w")
            fcntl.flock(lock, fcntl.LOCK_SH)
        return cls(folder, lock, count, forms)

    @staticmethod
    def free_bytes() -> int:
        """Return the free bytes of the disk that caches lie on. Raises OSError."""
        return shutil.disk_usage(scratch.shared_folder()).free

    @property
    def is_complete(self) -> bool:
        """Whether every sample has been written."""
        return bool(self._marks.all())

    def has(self, row: int) -> bool:
        """Return whether a sample has been written."""
        return bool(self._marks[row])

    def write(self, row: int, fields: Sequence[np.ndarray]) -> None:
        """Write a sample; without an effect once the disk is full."""
        self.is_full = self.is_full or self._is_short()
        if self.is_full:
            return
        try:
            for file, form, field in zip(self._files, self._forms, fields, strict=True):
                _write(file, np.ascontiguousarray(field).reshape(-1).view(np.uint8).data, row * form.num_bytes)
            _write(self._marks_file, memoryview(b"\1"), row)
        except OSError:
            self.is_full = True

    def _is_short(self) -> bool:
        """Return whether the disk has little room left, which is for the others who write to it."""
        disk = os.fstatvfs(self._marks_file)
        return disk.f_bavail * disk.f_frsize < min(RESERVE_BYTES, RESERVE_PART * disk.f_blocks * disk.f_frsize)

    def read(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """Return each field of these samples, (samples, ...); all of them have been written."""
        return [self._field(i, rows) for i in range(len(self._forms))]

    def _field(self, i: int, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        form, file = self._forms[i], self._files[i]
        array = np.empty((len(rows), *form.shape), form.dtype)
        flat = array.reshape(len(rows), -1).view(np.uint8) if form.num_bytes else array
        for place, row in enumerate(rows):
            if form.num_bytes and os.preadv(file, [flat[place].data], int(row) * form.num_bytes) != form.num_bytes:
                raise OSError(f"{self._folder}: sample {row} cannot be read")
        return array

    def close(self, patience_s: float = 0.0) -> None:
        """Close the files; delete them if no other process uses them. A forked process leaves its parent's alone.

        patience_s: seconds to wait for others that are ending.
        """
        if self._pid != os.getpid() or self._lock.closed:
            return
        atexit.unregister(self.close)
        del self._marks
        for file in (*self._files, self._marks_file):
            os.close(file)
        self._lock.close()
        until = time.monotonic() + patience_s
        scratch.delete_abandoned(self._folder.parent)
        while self._folder.is_dir() and time.monotonic() < until:
            time.sleep(0.05)
            scratch.delete_abandoned(self._folder.parent)


def _sized(path: Path, num_bytes: int) -> int:
    """Open a file of this size, without taking room on the disk for what is not written yet; return its descriptor."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if os.fstat(file).st_size != num_bytes:
        os.ftruncate(file, num_bytes)
    return file


def _write(file: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written
