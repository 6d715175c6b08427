"""Ray, starting while a command imports its experiment, and faults shown before it is shut down."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Generic

from raygpu.cli.console import LiveConsole, in_command, print_faults
from raygpu.config import PackConfig, PlaceConfig, SweepConfig
from raygpu.config.source import Source
from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment
from raygpu.errors import BadInput
from raygpu.records import interrupts
from raygpu.workflow.service_use import AnyConfig, ServiceUse, held, service_use

RAY_RUNS = (
    "Ray runs in this process already, by ray.init(); raygpu starts or joins one by itself: call ray.shutdown() before"
)
ROWS_ARE_LOST = (
    "experiment: data() has its samples in Ray (raygpu.RayRows), and {} measures in a Ray of its own: give it arrays"
)
USED_ELSEWHERE = (
    "another thread of this process runs a raygpu command, and Ray is one for a process: wait for its end, or run them"
    " in processes of their own"
)
START_S = 60.0
"""Seconds that Ray's start may take after Ctrl-C or a fault, before it is closed."""
ENGINES = {
    "sweep": "raygpu.engines.tune.engine",
    "train": "raygpu.engines.train.production",
    "balance": "raygpu.engines.profiling.short_trainings",
}
"""Module of each command's engine, imported while Ray's processes start."""
TRAINABLE, CONTROLLER = "raygpu.engines.tune.trainable", "ray.train.v2._internal.execution.controller"
WORKER_MODULES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "sweep": {
        "torch": ("raygpu.training.torch.solo", TRAINABLE),
        "keras": ("raygpu.training.keras.solo", TRAINABLE),
        "function": (TRAINABLE,),
        "command": (TRAINABLE,),
    },
    "train": {
        "torch": (
            CONTROLLER,
            "ray.train.torch",
            "raygpu.engines.train.worker",
            "raygpu.training.distributed.torch_ranks",
        ),
        "keras": (CONTROLLER,),  # TensorFlow would hold up the controller
        "function": (CONTROLLER, "raygpu.engines.train.worker"),
    },
}
"""Modules that the first workers of a command import before they are asked for, by the kind of the experiment."""
FUSED_MODULES = ("raygpu.training.fused.model_array", "torch._decomp")
"""Modules of a worker whose trials may be fused; the second one is imported at a loss' first call under vmap."""

if TYPE_CHECKING:
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.engines.cluster.preload import Preload


class RayStart(Generic[AnyConfig]):
    """A start of Ray that is under way in a thread."""

    def __init__(self, config: AnyConfig, future: Future[Cluster], preload: Preload | None) -> None:
        self.config: AnyConfig = config
        """The configuration, with the command's part of a service's GPUs as its largest number, if it joins one."""
        self._may_fuse: bool = isinstance(config, SweepConfig) and config.gpu.mode in ("auto", "fused")
        self._future = future
        self._preload = preload

    def trains(self, source: Source) -> None:
        """Let the first workers import what the experiment's trainings need, while others plan."""
        if self._preload is None:
            return
        from raygpu.training.base import thread_environment

        may_fuse: bool = source.kind == "torch" and self._may_fuse
        modules = [*WORKER_MODULES[self.config.COMMAND][source.kind], *(FUSED_MODULES if may_fuse else ())]
        environment = thread_environment(1, yielding=may_fuse)
        # The number of threads is set again for each training; whether they yield is read once, by torch's import.
        self._preload.announce(modules, {"OMP_WAIT_POLICY": environment["OMP_WAIT_POLICY"]} if may_fuse else {})

    def wait(self) -> Cluster:
        """Wait for Ray and return the cluster. Called in the main thread, which keeps its signals."""
        try:
            return self._future.result()
        finally:
            interrupts.retake_signals()


_USE = threading.RLock()
"""Held by the thread that runs a command."""


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Raise BadInput while another thread of this process runs a command: it would end the other's Ray, change how Tune
    works there, and begin the other's time anew. Also a decorator."""
    if not _USE.acquire(blocking=False):
        raise BadInput(USED_ELSEWHERE)
    try:
        yield
    finally:
        _USE.release()


@contextmanager
def ray_starting(
    config: AnyConfig,
    gpus: Sequence[Gpu],
    source_folder: Path,
    console: LiveConsole,
    *,
    apart: bool,
    least: Fraction | None = None,
    wanted: bool = True,
) -> Iterator[RayStart[AnyConfig] | None]:
    """Start Ray in a thread, or join a cluster or the service, while the caller does something else; close it at the
    end, in any case. A fault of the user's inside is printed before Ray is shut down.

    Yields None if it is not wanted. source_folder: of the code that workers run; sent to a cluster's nodes. console:
    shows lines on waiting. apart: whether this machine's unequal GPUs are kept apart. least: smallest part of a
    service's GPUs that is of use. Raises BadInput if this process uses Ray already.
    """
    with one_at_a_time():
        if not wanted:
            with faults_printed_first():
                yield None
            _end_ray_of_data()
            return
        require_no_ray()
        measures = config.COMMAND == "balance"
        used = service_use(config, gpus, console.warn, apart=apart, least=least, measures=measures)
        with (
            used as service,
            _starting(config, gpus, source_folder, console, apart, service) as start,
            faults_printed_first(),
        ):
            yield start


@contextmanager
def _starting(
    config: AnyConfig,
    gpus: Sequence[Gpu],
    source_folder: Path,
    console: LiveConsole,
    apart: bool,
    service: ServiceUse | None,
) -> Iterator[RayStart[AnyConfig]]:
    """Start Ray in a thread, or join a cluster or the service; close it at the end."""
    section, job = config.cluster, f"{config.COMMAND} {config.name}"
    nodes = host.nodes(gpus, apart=apart) if section.is_local else []
    ray_environment.prepare(local=len(nodes) == 1, starts=section.is_local)
    may_preload = service is None and len(nodes) == 1 and config.COMMAND in WORKER_MODULES
    preload = _preload(config.COMMAND, len(gpus), int(nodes[0].num_cpus)) if may_preload else None
    given_up = Event()

    def start() -> Cluster:
        """Start a local Ray, or connect to a cluster. Ray takes seconds to import."""
        from raygpu.engines.cluster.ray_private_api import STARTED_HERE, others_wait

        with others_wait():  # data() may use Ray
            require_no_ray(f"experiment: its code has started Ray, and {STARTED_HERE}")
            if service is not None:
                return service.join(job)
            if section.is_local:
                from raygpu.engines.cluster.local_cluster import start_local

                importing = threading.Thread(target=_import_engine, args=(config.COMMAND,), name="engine-import")
                importing.daemon = True
                importing.start()
                return start_local(gpus, job, apart=apart, preload=preload)
            from raygpu.engines.cluster.remote_cluster import Wanted, connect

            wanted_gpus = Wanted(section.min_gpus, section.wait_s, console.line, given_up)
            return connect(section.address, source_folder, wanted_gpus, job)

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray") as pool:
        starting = pool.submit(start)
        try:
            with interrupts.raised_outside_imports():
                yield RayStart(held(config, service), starting, preload)
        finally:
            given_up.set()
            if preload is not None:
                preload.close()
            fault = sys.exc_info()[1]
            interrupted = isinstance(fault, KeyboardInterrupt)
            if interrupted and not starting.done():
                console.warn(f"interrupted; Ray still starts, and is ended once it has, in {START_S:g} s at most")
            try:
                error = starting.exception() if fault is None else _end_of_start(starting)
            except TimeoutError:
                message = f"Ray's start has not ended for {START_S:g} s, so this process is ended"
                print_faults([f"interrupted; {message}" if interrupted else message])
                os._exit(130 if interrupted else 2 if isinstance(fault, BadInput) else 1)
            if error is None:
                starting.result().close()


def _end_of_start(starting: Future[Cluster]) -> BaseException | None:
    """Wait for the end of Ray's start, and return its error. Raises TimeoutError.

    A further Ctrl-C changes nothing: the start cannot be stopped half-way, and its Ray has to be closed.
    """
    until = time.monotonic() + START_S
    while True:
        with suppress(KeyboardInterrupt):
            return starting.exception(max(0.0, until - time.monotonic()))


def _preload(command: str, num_gpus: int, num_cpus: int) -> Preload:
    """Return the imports of a command's first workers: one for each GPU.

    Of a sweep, no more than half of the CPUs import. A training, whose controller needs one more, waits for all.
    """
    from raygpu.engines.cluster.preload import Preload

    if command == "train":
        return Preload(workers=min(max(1, num_gpus) + 1, num_cpus))
    return Preload(workers=max(1, min(num_gpus, num_cpus // 2)))


def require_no_ray(line: str = RAY_RUNS) -> None:
    """Raise BadInput, with this line, if Ray has been started in this process."""
    if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():
        raise BadInput(line)


def _end_ray_of_data() -> None:
    """End a Ray that the experiment's data() has started in this process, if there is one."""
    if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():
        ray.shutdown()


def _import_engine(command: str) -> None:
    """Import a command's engine; a fault is left to the command, which imports it again."""
    with suppress(Exception):
        importlib.import_module(ENGINES[command])


@contextmanager
def measuring_ray(
    config: PackConfig | PlaceConfig,
    gpus: Sequence[Gpu],
    tell: Callable[[str], None],
    of: Sequence[Gpu] = (),
) -> Iterator[Cluster]:
    """Join the service for a measurement, or start a Ray with these GPUs, or a simulated one; end its use at the end.

    tell: takes lines on waiting. of: all GPUs of this machine that a service may have, where
    `gpus` are taken by their UUIDs and not by Ray. A Ray that the experiment's data() has started is ended first.
    Raises BadInput if samples lie in it.
    """
    with one_at_a_time():
        if (ray := sys.modules.get("ray")) is not None and ray.is_initialized():  # not an earlier command's rows
            from raygpu.engines.cluster.ray_rows import rows_in_use

            if rows_in_use():
                raise BadInput(ROWS_ARE_LOST.format(config.COMMAND))
            _end_ray_of_data()
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
