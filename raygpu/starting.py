"""Ray, starting while a command imports its experiment, and faults shown before it is shut down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from raygpu import exits
from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.engines import environment
from raygpu.errors import BadInput
from raygpu.sections import OWN_RAY
from raygpu.views import console as views

if TYPE_CHECKING:
    from raygpu.engines.cluster import Cluster


@contextmanager
def started(
    address: str, gpus: Sequence[Gpu], source_folder: Path, *, apart: bool, wanted: bool = True
) -> Iterator[Future[Cluster] | None]:
    """Ray, starting in the background, or the cluster at this address; None where it is not wanted.

    source_folder: of the code that workers run.
    """
    if not wanted:
        yield None
        return
    environment.prepare(local=address == OWN_RAY and len(host.nodes(gpus, apart=apart)) == 1)
    from raygpu.engines.cluster import in_background  # Ray takes seconds to import

    with in_background(address, gpus, source_folder, apart=apart) as starting:
        yield starting


def arrived(starting: Future[Cluster]) -> Cluster:
    """What `started` gave, when it is there. Called in the main thread, which keeps its signals."""
    try:
        return starting.result()
    finally:
        exits.retake_signals()


@contextmanager
def told_at_once() -> Iterator[None]:
    """A fault is shown before Ray is shut down, which takes its time."""
    try:
        yield
    except BadInput as error:
        views.faults(error.faults)
        error.shown = True
        raise
