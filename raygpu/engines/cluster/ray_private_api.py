"""Private API of Ray that raygpu uses. `tests/engines/cluster/test_ray_private_api.py` tells when it changes."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.auto_init_hook import auto_init_lock

DASHBOARD = "dashboard.py"
"""Program of Ray's dashboard."""
PRESTARTED = "--num_prestart_python_workers="
"""Flag of Ray's raylet for the number of workers that it starts before they are asked for."""
PRESTART_S = 10.0
STARTED_HERE = "raygpu starts Ray by itself: leave ray.init() out of the experiment, and use Ray in data() alone"


def bind_to_loopback(wanted: bool) -> None:
    """Make the next Ray of this process listen on 127.0.0.1 alone, or on all addresses: Ray reads its environment
    variable only once, at its import."""
    ray_constants.ENABLE_RAY_CLUSTER = not wanted


@contextmanager
def others_wait() -> Iterator[None]:
    """Have other threads that use Ray wait for the start inside, where Ray would start by itself; their `ray.init()`
    raises RuntimeError."""
    kept, starter = ray.init, threading.get_ident()

    def init(*arguments: Any, **options: Any) -> Any:
        """Call `ray.init`, in the thread that starts Ray."""
        if threading.get_ident() != starter:
            raise RuntimeError(f"ray.init() is called, and {STARTED_HERE}")
        return kept(*arguments, **options)

    with auto_init_lock:
        ray.init = init
        try:
            yield
        finally:
            ray.init = kept


@contextmanager
def own_process_groups(dashboard_files: Path | None, prestarted: int | None = None) -> Iterator[None]:
    """Start Ray's processes, meanwhile, outside this process' group.

    dashboard_files: folder for temporary files of Ray's dashboard, which never deletes them; None for the system's.
    prestarted: number of worker processes that Ray starts before they are asked for; None for Ray's own, one for each
    CPU.

    `timeout` and other launchers send SIGTERM to the whole group of a command, which would end Ray before the command
    has taken its results from it. Ray has no public setting for it; its processes end
    by themselves, some minutes at most after this one was killed.
    """
    kept = services.ConsolePopen

    def start(command: Sequence[str], *arguments: Any, env: Mapping[str, str], **options: Any) -> Any:
        """Start one of Ray's processes."""
        if dashboard_files is not None and any(Path(word).name == DASHBOARD for word in command):
            env = {**env, "TMPDIR": str(dashboard_files)}
        if prestarted is not None:
            command = [f"{PRESTARTED}{prestarted}" if word.startswith(PRESTARTED) else word for word in command]
        return kept(command, *arguments, env=env, process_group=0, **options)

    services.ConsolePopen = start
    try:
        yield
    finally:
        services.ConsolePopen = kept


def prestart_workers(node: Mapping[str, Any], number: int, keep_s: int) -> None:
    """Have a node start workers that belong to no job yet, and keep them. node: of `ray.nodes()`.

    Ray itself starts such workers once, with the node. Raises RuntimeError if the node does not answer.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    wanted = node_manager_pb2.PrestartWorkersRequest(
        language=common_pb2.Language.PYTHON, num_workers=number, keep_alive_duration_secs=keep_s
    )
    with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
        try:
            node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(wanted, timeout=PRESTART_S)
        except grpc.RpcError as error:
            raise RuntimeError(f"Ray starts no workers: {error}") from error


def use_tokens() -> None:
    """Have this process show its token to the Ray that it joins, as Ray does itself when it starts one by default."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")  # Ray has read the variable at its import


def run_before_first_task(config: Any, hook: Any) -> None:
    """Have each worker of a job call the hook's `_apply()` before its first task, once it has the driver's paths.

    config: of the job. hook: is pickled. Ray does so with a configuration of logging; a setup hook of the runtime
    environment would do as well, but a job with such an environment gets new processes.
    """
    config.set_py_logging_config(hook)
