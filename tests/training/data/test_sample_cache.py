"""Decoded samples on the disk: whole ones only, shared by processes, gone with the last of them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from raygpu.records import scratch
from raygpu.training.data import sample_cache
from raygpu.training.data.sample_cache import Form, SampleCache

FORMS = [Form(np.dtype(np.uint8), (3, 2)), Form(np.dtype(np.int64), ()), Form(np.dtype(np.float32), (0,))]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def sample(row: int) -> list[Any]:
    return [np.full((3, 2), row, np.uint8), np.array(row * 10), np.empty(0, np.float32)]


def test_what_was_written_is_read_in_the_order_asked_for() -> None:
    cache = SampleCache.open("1", 4, FORMS)
    for row in (3, 0):
        cache.write(row, sample(row))
    assert [cache.has(row) for row in range(4)] == [True, False, False, True]
    images, labels, nothing = cache.read([3, 0, 3])
    assert images.shape == (3, 3, 2)
    assert images.dtype == np.uint8
    assert images[:, 0, 0].tolist() == [3, 0, 3]
    assert labels.tolist() == [30, 0, 30]
    assert nothing.shape == (3, 0)
    assert not cache.is_complete
    for row in (1, 2):
        cache.write(row, sample(row))
    assert cache.is_complete
    cache.close()


def test_arrays_in_another_order_of_axes_are_written_as_they_are_meant() -> None:
    cache = SampleCache.open("1", 1, [Form(np.dtype(np.int16), (2, 3))])
    array = np.arange(6, dtype=np.int16).reshape(3, 2).T
    cache.write(0, [array])
    assert np.array_equal(cache.read([0])[0][0], array)
    cache.close()


def _writes(name: str) -> None:
    cache = SampleCache.open(name, 4, FORMS)
    cache.write(2, sample(2))
    cache.close()


def test_processes_share_the_files_and_the_last_one_deletes_them() -> None:
    cache = SampleCache.open("17", 4, FORMS)
    other = multiprocessing.get_context("fork").Process(target=_writes, args=("17",))
    other.start()
    other.join()
    assert other.exitcode == 0
    assert cache.has(2)
    assert cache.read([2])[1].tolist() == [20]
    folder = scratch.shared_folder() / "samples" / "17"
    assert folder.is_dir()
    cache.close()
    assert not folder.exists()


def _ends_by_force(name: str) -> None:
    SampleCache.open(name, 4, FORMS).write(0, sample(0))
    os._exit(9)


def test_the_files_of_a_killed_process_are_deleted_by_the_next() -> None:
    killed = multiprocessing.get_context("fork").Process(target=_ends_by_force, args=("23",))
    killed.start()
    killed.join()
    folder = scratch.shared_folder() / "samples" / "23"
    assert folder.is_dir()
    SampleCache.open("24", 4, FORMS).close()
    assert not folder.exists()


def test_a_forked_process_leaves_the_cache_of_its_parent_open() -> None:
    cache = SampleCache.open("31", 4, FORMS)
    child = multiprocessing.get_context("fork").Process(target=cache.close)
    child.start()
    child.join()
    cache.write(1, sample(1))
    assert cache.read([1])[1].tolist() == [10]
    cache.close()


def test_a_full_disk_ends_the_writing_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SampleCache.open("1", 4, FORMS)
    cache.write(0, sample(0))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sample_cache.os, "pwrite", full)
    cache.write(1, sample(1))
    monkeypatch.undo()
    assert cache.is_full
    assert not cache.has(1)
    cache.write(2, sample(2))
    assert not cache.has(2)
    assert cache.read([0])[1].tolist() == [0]
    cache.close()


def test_records_that_are_cut_off_are_no_samples() -> None:
    cache = SampleCache.open("1", 4, FORMS)
    cache.write(3, sample(3))
    os.truncate(scratch.shared_folder() / "samples" / "1" / "field-0", 10)
    with pytest.raises(OSError, match="sample 3 cannot be read"):
        cache.read([3])
    cache.close()


def test_room_is_left_to_others_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = SampleCache.open("1", 4, FORMS)
    cache.write(0, sample(0))
    monkeypatch.setattr(sample_cache.os, "fstatvfs", lambda file: SimpleNamespace(f_bavail=9, f_frsize=1, f_blocks=100))
    cache.write(1, sample(1))
    assert cache.is_full
    assert not cache.has(1)
    cache.close()
