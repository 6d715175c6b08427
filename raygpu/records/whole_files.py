"""Files that are written in one step: a reader, and the command after a killed one, finds the old or the new one; of a
file that grows by lines, no half line before a whole one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


@contextmanager
def whole_file(path: Path, *, lasting: bool = True) -> Iterator[TextIO]:
    """Open a text file that takes the place of `path` once the block has ended; a full disk leaves the one before.

    lasting: whether a power loss leaves the old or the new one too, which costs a few milliseconds on a local disk: a
    file system may write a new name to the disk before the content. False for what is written often and can be made
    again.
    """
    with replacement(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        yield file
        if lasting:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def replacement(path: Path) -> Iterator[Path]:
    """Yield the path of a file to write beside `path`, whose place it takes once the block has ended."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, in one step."""
    with replacement(path) as temporary:
        temporary.touch(0o600)
        temporary.write_bytes(content)


def write_whole(path: Path, text: str, *, lasting: bool = True) -> None:
    """Write a text file in one step. lasting: as of `whole_file`."""
    with whole_file(path, lasting=lasting) as file:
        file.write(text)


def append_lines(path: Path, lines: str, *, sync: bool = False) -> None:
    """Append whole lines to a file; a full disk leaves it as it was.

    A last line that a crash cut off is ended first. sync: whether to wait until the disk has them. Raises OSError.
    """
    with path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        is_cut = file.read(1) not in (b"", b"\n")
        data = (b"\n" if is_cut else b"") + lines.encode("utf-8", "backslashreplace")
        try:
            while data:
                data = data[file.write(data) :]
            if sync:
                os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # the caller has the lines, and gives them again
                file.truncate(size)
            raise
