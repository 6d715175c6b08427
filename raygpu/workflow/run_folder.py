"""The folder of a run that begins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from raygpu.errors import RaygpuError, one_line
from raygpu.records.run_directory import RunDirectory


@contextmanager
def removed_if_unusable(folder: RunDirectory, *, is_new: bool) -> Iterator[None]:
    """Remove a new folder again if it cannot be written, or if the block finds that a node cannot reach it.

    Raises RaygpuError in place of an OSError.
    """
    try:
        yield
    except (RaygpuError, OSError) as error:
        if is_new:
            folder.remove()
        if isinstance(error, OSError):
            raise RaygpuError(f"{folder.path} cannot be written: {one_line(error)}") from error
        raise
