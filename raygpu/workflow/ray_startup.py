"""Ray, starting while a command imports its experiment, and faults shown before it is shut down."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from raygpu.cli.console import in_command, print_faults
from raygpu.config import PackConfig, PlaceConfig, SweepConfig, TrainConfig
from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment
from raygpu.errors import BadInput
from raygpu.records import interrupts
from raygpu.workflow.service_use import ServiceUse, service_use

START_S = 60.0
"""Seconds that Ray's start may take after Ctrl-C, before it is closed."""

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster


@contextmanager
def ray_starting(
    config: SweepConfig | TrainConfig,
    gpus: Sequence[Gpu],
    source_folder: Path,
    tell: Callable[[str], None],
    *,
    apart: bool,
    wanted: bool = True,
    service: ServiceUse | None = None,
) -> Iterator[Future[Cluster] | None]:
    """Start Ray in a thread, or join a cluster, while the caller does something else; close it at the end, in any case.

    Yields None if it is not wanted. source_folder: of the code that workers run; sent to a cluster's nodes. tell: takes
    lines on waiting. apart: whether this machine's unequal GPUs are kept apart. service: joined in place of a new Ray.
    """
    if not wanted:
        yield None
        return
    section, job = config.cluster, f"{config.COMMAND} {config.name}"
    ray_environment.prepare(local=section.is_local and len(host.nodes(gpus, apart=apart)) == 1)
    given_up = Event()

    def start() -> Cluster:
        """Start a local Ray, or connect to a cluster. Ray takes seconds to import."""
        # Ray takes seconds to import.
        if service is not None:
            return service.join(job)
        if section.is_local:
            from raygpu.engines.cluster.local_cluster import start_local

            return start_local(gpus, job, apart=apart)
        from raygpu.engines.cluster.remote_cluster import Wanted, connect

        wanted_gpus = Wanted(section.min_gpus, section.wait_s, tell, given_up)
        return connect(section.address, source_folder, wanted_gpus, job)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray") as pool:
        starting = pool.submit(start)
        try:
            with interrupts.raised_outside_imports():
                yield starting
        finally:
            given_up.set()
            interrupted = isinstance(sys.exc_info()[1], KeyboardInterrupt)
            try:
                error = starting.exception(START_S if interrupted else None)
            except TimeoutError:
                print_faults([f"interrupted; Ray's start has not ended for {START_S:g} s, so this process is ended"])
                os._exit(130)
            if error is None:
                starting.result().close()


@contextmanager
def measuring_ray(
    config: PackConfig | PlaceConfig,
    gpus: Sequence[Gpu],
    tell: Callable[[str], None],
    of: Sequence[Gpu] = (),
) -> Iterator[Cluster]:
    """Join the service for a measurement, or start a Ray with these GPUs, or a simulated one; end its use at the end.

    tell: takes lines on waiting. of: all GPUs of this machine that a service may have, where
    `gpus` are taken by their UUIDs and not by Ray.
    """
    ray_environment.prepare(local=True)
    with service_use(config, gpus, tell, of=of, measures=True) as service:
        job = f"{config.COMMAND} {config.name}"
        if service is not None:
            cluster = service.join(job)
        else:
            from raygpu.engines.cluster.local_cluster import start_local

            cluster = start_local(gpus, job)
        interrupts.retake_signals()
        try:
            yield cluster
        finally:
            cluster.close()


def wait_for_ray(starting: Future[Cluster]) -> Cluster:
    """Wait for Ray and return the cluster. Called in the main thread, which keeps its signals."""
    try:
        return starting.result()
    finally:
        interrupts.retake_signals()


@contextmanager
def faults_printed_first() -> Iterator[None]:
    """Print a command's fault before Ray is shut down, which takes its time; from Python, faults are raised alone."""
    try:
        yield
    except BadInput as error:
        if not in_command.get():
            raise
        print_faults(error.faults)
        error.shown = True
        raise
