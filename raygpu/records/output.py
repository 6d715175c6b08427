"""Standard output and standard error of a command, whose work goes on where nothing takes what it prints."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk that may have space again."""
NAMES = ("stdout", "stderr")


class _EnduringFile(io.FileIO):
    """A standard stream that raises nothing: a slow reader is waited for, what a full disk does not take is left out,
    and once its reader or its terminal is gone, /dev/null takes all the rest."""

    def write(self, data: Any, /) -> int:
        """Write the data as far as it is taken; return the size of all."""
        view = memoryview(data).cast("B")
        size = view.nbytes
        try:
            while view:
                count: int | None = super().write(view)  # None for now, of a pipe that another process does not block
                if count is None:
                    _wait(self.fileno())
                view = view[count or 0 :]
        except OSError as error:
            if error.errno not in FULL:
                send_to_null(self.fileno())
        return size


def _wait(descriptor: int) -> None:
    """Wait until a file takes more."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    waiting.poll()


def send_to_null(descriptor: int) -> None:
    """Send all further output of a descriptor to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


def open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that the shell has closed, which Python and Ray do without badly."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(null, True)
    os.close(null)
    for name in NAMES:
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


@contextmanager
def enduring_output() -> Iterator[None]:
    """Let nothing that is printed inside fail. Streams that are no files of this process stay as they are."""
    with ExitStack() as replaced:
        for name in NAMES:
            replaced.enter_context(_enduring(name))
        yield


@contextmanager
def _enduring(name: str) -> Iterator[None]:
    before = getattr(sys, name)
    if type(before) is not io.TextIOWrapper or type(_raw(before)) is not io.FileIO or before.closed:
        yield
        return
    with suppress(OSError):
        before.flush()
    raw: Any = _EnduringFile(before.fileno(), "w", closefd=False)
    stream = io.TextIOWrapper(
        raw if before.buffer is _raw(before) else io.BufferedWriter(raw),  # without a buffer by python -u
        encoding=before.encoding,
        errors=before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    setattr(sys, name, stream)
    try:
        yield
    finally:
        stream.flush()
        if getattr(sys, name) is stream:
            setattr(sys, name, before)


def _raw(stream: io.TextIOWrapper) -> Any:
    return getattr(stream.buffer, "raw", stream.buffer)
