"""The folder of a run that begins, and that of a measurement which has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raygpu.config import StoredConfig
from raygpu.devices import disk
from raygpu.engines.cluster import ray_files
from raygpu.errors import RaygpuError, one_line
from raygpu.records.begun_run import begun
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import StorageError

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster


@contextmanager
def ready_folder(
    config: StoredConfig, resume: RunDirectory | None, cluster: Cluster, warn: Callable[[str], None]
) -> Iterator[RunDirectory]:
    """Yield the folder of a run that begins or goes on, for its first files; then require that all nodes see it.

    A new one that cannot be written, or that a node cannot reach, is removed. resume: the folder of the run that goes
    on. Raises RaygpuError.
    """
    disk.wait_and_say(ray_files.disks(Path(config.runs_dir)), warn)
    folder = resume or RunDirectory.create_for(config)
    folder.claim()
    try:
        folder.note_start()
        yield folder
        cluster.require(folder.shared)
        begun.set(folder)
    except (RaygpuError, OSError) as error:
        if resume is None:
            folder.remove()
        if isinstance(error, OSError):
            raise RaygpuError(f"{folder.path} cannot be written: {one_line(error)}") from error
        raise


@contextmanager
def removed_if_failed(folder: RunDirectory) -> Iterator[None]:
    """Remove the run's folder if the block fails, else note that the run has begun."""
    try:
        yield
    except BaseException:
        folder.remove()
        raise
    begun.set(folder)


@contextmanager
def published(folder: RunDirectory, warn: Callable[[str], None]) -> Iterator[RunDirectory]:
    """Copy the folder of a measurement into object storage, if it goes there; yield the one that has the results.

    Where that fails, it is the folder here, and the block gives the results to MLflow all the same. Raises StorageError
    after it. Until then a measurement writes into the folder here alone, so that no fault of the storage removes it.
    """
    try:
        folder.publish()
    except StorageError as error:
        warn(f"{error}; the results are in {folder.path}")
        yield RunDirectory(folder.path)
        raise StorageError(f"{folder} lacks results, which are in {folder.path}") from error
    else:
        yield folder
