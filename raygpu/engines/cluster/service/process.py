"""Start the service in this process, and end its Ray when it has ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment, ray_files
from raygpu.engines.cluster.service.fingerprint import Fingerprint
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.errors import BadInput, RaygpuError


def serve(gpus: Sequence[Gpu], *, workers: int | None, idle_s: float, say: Callable[[str], None]) -> None:
    """Start a Ray with these GPUs, or a simulated one, and serve commands until the service ends.

    workers: number of idle workers; None for one that suits this machine. say: takes lines for the service's output.
    Raises BadInput if a service runs already, RaygpuError if Ray does not start.
    """
    folder = ServiceFolder()
    lock = folder.locked()
    if lock is None:
        raise BadInput("up: a service runs already; raygpu status shows it, raygpu down ends it")
    with os.fdopen(lock):
        folder.delete()
        if os.environ.get("RAY_AUTH_MODE", "token") != "token":
            raise BadInput("up: RAY_AUTH_MODE turns Ray's tokens off, and other users could use the service; unset it")
        ray_environment.prepare(local=True)
        fingerprint = Fingerprint.here(gpus, apart=True)
        os.chdir(folder.path)  # the folder that it was started in may be removed
        _serve(folder, fingerprint, gpus, workers, idle_s, say)


def _serve(
    folder: ServiceFolder,
    fingerprint: Fingerprint,
    gpus: Sequence[Gpu],
    workers: int | None,
    idle_s: float,
    say: Callable[[str], None],
) -> None:
    from raygpu.devices import host
    from raygpu.engines.cluster.local_cluster import start_local
    from raygpu.engines.cluster.service.daemon import ServiceDaemon
    from raygpu.engines.cluster.service.pool import Pool, default_size, preloading

    size = workers if workers is not None else default_size(host.num_cpus())
    with preloading(size):
        cluster = start_local(gpus, "service")
    try:
        daemon = ServiceDaemon(folder, cluster, fingerprint, Pool(size), _description(cluster), idle_s, say)

        def end(number: int, frame: FrameType | None) -> None:
            """End the service at its next look."""
            daemon.ended = True

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, end)
        daemon.run()
    finally:
        cluster.close()
        say("ended")


def _description(cluster: Any) -> dict[str, Any]:
    """Return what a command needs to know about the service's Ray."""
    import ray

    logs = ray_files.logs()
    if logs is None:
        raise RaygpuError("Ray did not start: it has no folder for its logs")
    return {
        "gcs_address": ray.get_runtime_context().gcs_address,
        "devices": [[device.node_id, device.local_id] for device in cluster.devices],
        "dashboard": cluster.dashboard.wait(),
        "logs": str(logs),
    }
