"""A file is replaced in one step, and stays where its new content does not come to an end."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from raygpu.records.whole_files import whole_file, write_whole
from tests.power_loss import Disk


def test_a_file_that_is_not_written_to_its_end_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    write_whole(path, "a\r\nb\n")

    def write_half() -> None:
        """Write as far as the disk takes it."""
        with whole_file(path) as file:
            file.write("half of it")
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_half()
    assert path.read_bytes() == b"a\r\nb\n"
    assert list(tmp_path.iterdir()) == [path]
    with whole_file(path) as file:
        file.write("new")
        assert path.read_bytes() == b"a\r\nb\n"
    assert path.read_text() == "new"


def test_threads_that_write_one_file_leave_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(letter: str) -> None:
        for _ in range(100):
            write_whole(path, letter * 10_000)

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, "abc"))
    assert path.read_text() in {letter * 10_000 for letter in "abc"}


def test_a_power_loss_leaves_the_old_or_the_new_one(losing_disk: Disk) -> None:
    path = losing_disk.path / "run.json"
    write_whole(path, "old")
    os.sync()
    write_whole(path, "new")
    losing_disk.lose_power()
    assert path.read_text() in ("old", "new")
