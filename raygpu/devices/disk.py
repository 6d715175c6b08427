"""Space on disks: a full one is waited for, since it is no fault of what is written to it."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

RESERVE_BYTES = 64 * 2**20
"""Free bytes below which a disk counts as full."""
RESERVE_PART = 0.02
"""Free share below which a disk counts as full; of a small disk it is less than RESERVE_BYTES."""
POLL_S = 1.0
PATIENCE_S = 600.0
"""Seconds for which a worker waits for space; it may be on another machine than whoever could free some."""
NO_SPACE = "no space left on the disk of {}: the run waits, and goes on once some MiB are free; Ctrl-C stops it"
SPACE_AGAIN = "there is space again"
FULL = {errno.ENOSPC, errno.EDQUOT}

R = TypeVar("R")


def full(paths: Sequence[Path], wanted_bytes: int = 0) -> Path | None:
    """Return the first of these folders whose disk has next to no free space, or less than is wanted; None for none."""
    for path in paths:
        try:
            usage = shutil.disk_usage(path)
        except OSError:  # not there yet, or out of reach
            continue
        if usage.free < max(wanted_bytes, min(RESERVE_BYTES, RESERVE_PART * usage.total)):
            return path
    return None


def is_full(error: BaseException, paths: Sequence[Path] = ()) -> bool:
    """Return whether an error comes from a full disk. paths: folders to which was written, as far as they are known."""
    if isinstance(error, OSError) and error.errno in FULL:
        return True
    # torch.save raises a RuntimeError that does not say why.
    return "No space left" in str(error) or ("PytorchStreamWriter" in str(error) and full(paths) is not None)


def wait_and_say(
    paths: Sequence[Path], say: Callable[[str], None], given_up: Callable[[], bool] = lambda: False
) -> None:
    """Wait while the disk of one of these folders is full; say so, and when it goes on."""
    if (full_folder := full(paths)) is None:
        return
    say(NO_SPACE.format(full_folder))
    while not given_up():
        time.sleep(POLL_S)
        if full(paths) is None:
            return say(SPACE_AGAIN)


def wait(paths: Sequence[Path], wanted_bytes: int = 0) -> None:
    """Wait while the disks of these folders have less free space. Raises OSError after PATIENCE_S seconds."""
    patiently(paths, lambda: None, wanted_bytes)


def patiently(paths: Sequence[Path], call: Callable[[], R], wanted_bytes: int = 0) -> R:
    """Call, and return the result; wait while the disks of these folders are full, and call again if that failed it.

    Raises OSError after PATIENCE_S seconds: nobody may see that this process waits.
    """
    began = time.monotonic()
    while True:
        if (full_folder := full(paths, wanted_bytes)) is None:
            try:
                return call()
            except Exception as error:
                if not is_full(error, paths) or time.monotonic() - began >= PATIENCE_S:
                    raise
        elif time.monotonic() - began >= PATIENCE_S:
            raise OSError(errno.ENOSPC, f"no space left for {PATIENCE_S:g} s", str(full_folder))
        time.sleep(POLL_S)
