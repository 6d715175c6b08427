"""Private API of Ray that raygpu uses. `tests/engines/cluster/test_ray_private_api.py` tells when it changes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants, services, state, worker
from ray._private.auto_init_hook import auto_init_lock
from ray._private.utils import get_dashboard_dependency_error
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.experimental import internal_kv

DASHBOARD = "dashboard.py"
"""Program of Ray's dashboard."""
DASHBOARD_NICENESS = 19
"""Priority of Ray's dashboard, below that of Ray's workers, 15: its ten processes take seconds of CPU to start."""
JOINED_S = 10.0
"""Seconds for which the start of a Ray looks again and again whether its node has joined; then it leaves it to Ray."""
LOOK_S = 0.02
ANSWER_S = 3.0
"""Seconds that Ray's head may take to answer."""
PRESTARTED = "--num_prestart_python_workers="
"""Flag of Ray's raylet for the number of workers that it starts before they are asked for."""
PRESTART_S = 10.0
AUTOSCALER = "monitor.py"
"""Program of Ray's autoscaler, in a folder below Ray's `autoscaler`."""
LOG_MONITOR = "log_monitor.py"
"""Program of Ray that follows the workers' logs."""
RAYLET = "raylet"
"""Program of Ray that starts the workers of a machine."""
GCS_SERVER = "gcs_server"
"""Program of Ray that keeps a cluster's state: its head."""
REDIS_FLAG = "--redis_address="
"""Argument of a head that keeps its state in Redis."""
STARTED_HERE = "raygpu starts Ray by itself: leave ray.init() out of the experiment, and use Ray in data() alone"


def bind_to_loopback(wanted: bool) -> None:
    """Make the next Ray of this process listen on 127.0.0.1 alone, or on all addresses: Ray reads its environment
    variable only once, at its import."""
    ray_constants.ENABLE_RAY_CLUSTER = not wanted


@contextmanager
def others_wait() -> Iterator[None]:
    """Have other threads that use Ray wait for the start inside, where Ray would start by itself; their `ray.init()`
    raises RuntimeError."""
    original_init, starter = ray.init, threading.get_ident()

    def init(*arguments: Any, **options: Any) -> Any:
        """Call `ray.init`, in the thread that starts Ray."""
        if threading.get_ident() != starter:
            raise RuntimeError(f"ray.init() is called, and {STARTED_HERE}")
        return original_init(*arguments, **options)

    with auto_init_lock:
        ray.init = init
        try:
            yield
        finally:
            ray.init = original_init


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
    original_popen = services.ConsolePopen

    def start(command: Sequence[str], *arguments: Any, env: Mapping[str, str], **options: Any) -> Any:
        """Start one of Ray's processes."""
        if dashboard_files is not None and any(Path(word).name == DASHBOARD for word in command):
            env = {**env, "TMPDIR": str(dashboard_files)}
        if prestarted is not None:
            command = [f"{PRESTARTED}{prestarted}" if word.startswith(PRESTARTED) else word for word in command]
        process = original_popen(command, *arguments, env=env, process_group=0, **options)
        if any(Path(word).name == DASHBOARD for word in command):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, DASHBOARD_NICENESS)
        return process

    services.ConsolePopen = start
    try:
        yield
    finally:
        services.ConsolePopen = original_popen


@contextmanager
def without_waits() -> Iterator[None]:
    """Start Ray, meanwhile, without two of its waits: for its dashboard, whose address `DashboardAddress` has later,
    and until the next full second once its node has joined."""
    kept_start, kept_get = services.start_api_server, services.get_node

    def start_api_server(*arguments: Any, **options: Any) -> Any:
        """Start the dashboard; its address is empty."""
        kept_look, starter, is_starting = internal_kv._internal_kv_get, threading.get_ident(), True

        def look(*arguments: Any, **options: Any) -> Any:
            """Find an empty address, for this start alone: a library that is imported meanwhile keeps this function."""
            if is_starting and threading.get_ident() == starter:
                return b""
            return kept_look(*arguments, **options)

        internal_kv._internal_kv_get = look
        try:
            return kept_start(*arguments, **options)
        finally:
            internal_kv._internal_kv_get, is_starting = kept_look, False

    def get_node(gcs_address: str, node_id: str) -> Any:
        """Return what Ray knows of the node, once it has joined."""
        global_state = state.GlobalState()
        global_state._initialize_global_state(services._get_gcs_client_options(gcs_address))
        until = time.monotonic() + JOINED_S
        while time.monotonic() < until and all(node["NodeID"] != node_id for node in global_state.node_table()):
            time.sleep(LOOK_S)
        return kept_get(gcs_address, node_id)

    services.start_api_server, services.get_node = start_api_server, get_node
    try:
        yield
    finally:
        services.start_api_server, services.get_node = kept_start, kept_get


class DashboardAddress:
    """Address of the dashboard of the Ray that this process has started by `without_waits`."""

    def __init__(self) -> None:
        self._node = worker._global_node
        self._client = GcsClient(address=self._node.gcs_address)
        self._has_packages = get_dashboard_dependency_error() is None

    def look(self) -> str | None:
        """Return HOST:PORT, and have Ray know it from then on; None as long as the dashboard starts."""
        namespace = ray_constants.KV_NAMESPACE_DASHBOARD
        address = self._client.internal_kv_get(ray_constants.DASHBOARD_ADDRESS.encode(), namespace, ANSWER_S)
        if address is None:
            return None
        self._client.internal_kv_put(b"webui:url", address, True, namespace, ANSWER_S)
        self._node._webui_url = address.decode()
        return str(address.decode())

    @property
    def is_lost(self) -> bool:
        """Whether no dashboard will start: it has ended, was not started, or lacks the packages of its pages."""
        if not self._has_packages:
            return True
        processes = self._node.all_processes.get(ray_constants.PROCESS_TYPE_DASHBOARD, [])
        return all(each.process.poll() is not None for each in processes)


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
    address = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    with init_grpc_channel(address, ray_constants.GLOBAL_GRPC_OPTIONS) as channel:
        try:
            node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(wanted, timeout=PRESTART_S)
        except grpc.RpcError as error:
            raise RuntimeError(f"Ray starts no workers: {error}") from error


def address_of_auto() -> str:
    """Return HOST:PORT of the cluster that `ray.init("auto")` joins. Raises ConnectionError without one."""
    return str(services.canonicalize_bootstrap_address_or_die("auto"))


def wants_token(address: str) -> bool | None:
    """Return whether a cluster's head, HOST:PORT, refuses a call because it has no token, or another one.

    None if it does not answer in time. `ray.init` would call it for 20 seconds, and then know no reason.
    """
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

    with init_grpc_channel(address, ray_constants.GLOBAL_GRPC_OPTIONS) as channel:  # without proxies, as Ray itself
        head = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(channel)
        try:
            head.GetClusterId(gcs_service_pb2.GetClusterIdRequest(), timeout=ANSWER_S)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
                return None
            return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False


def use_tokens() -> None:
    """Have this process show its token to the Ray that it joins, as Ray does itself when it starts one by default."""
    os.environ["RAY_AUTH_MODE"] = "token"
    read_token_mode()


def read_token_mode() -> None:
    """Have Ray read RAY_AUTH_MODE, which it reads only once, at its import, and forget the token that it has kept."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

    Config.initialize("")  # before the cache: threads of Ray that end may still load a token
    AuthenticationTokenLoader.instance().reset_cache()


def run_before_first_task(config: Any, hook: Any) -> None:
    """Have each worker of a job call the hook's `_apply()` before its first task, once it has the driver's paths.

    config: of the job. hook: is pickled. Ray does so with a configuration of logging; a setup hook of the runtime
    environment would do as well, but a job with such an environment gets new processes.
    """
    config.set_py_logging_config(hook)


def kill_autoscaler() -> list[int]:
    """Kill the autoscaler of the Ray that this process has started; return its pid, or nothing without one.

    A local Ray has nothing to scale. On SIGTERM the autoscaler's process goes on for more than a second; `ray.shutdown`
    waits that long, and kills it then.
    """
    killed = []
    for process in _children(_is_autoscaler):
        with suppress(psutil.Error):  # it has just ended
            process.kill()
            killed.append(process.pid)
    return killed


def log_monitor() -> psutil.Process | None:
    """Return the process of the Ray that this process has started which follows its logs; None without one.

    SIGTERM ends it at once; the head and the raylet take seconds.
    """
    return next(iter(_children(_is_log_monitor)), None)


def servers() -> dict[str, psutil.Process]:
    """Return the "raylet" that this process is connected to and its cluster's "head", as far as they can be seen here.

    Without either of them, Ray ends this process with exit code 1 and a line of its own: some ten seconds after the
    raylet, and a minute after the head. A head whose state Redis keeps may be started again, and is left out.
    """
    if (node := worker.global_worker.node) is None:
        return {}
    flags = {
        RAYLET: ("raylet", f"--raylet_socket_name={node.raylet_socket_name}"),
        GCS_SERVER: ("head", f"--session-name={node.session_name}"),
    }
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it has just ended, or is another user's
            if (program := process.name()) in flags:
                name, flag = flags[program]
                words = process.cmdline()
                if flag in words and not any(word.startswith(REDIS_FLAG) for word in words):
                    found[name] = process
    return found


def _children(runs: Callable[[Path], bool]) -> list[psutil.Process]:
    """Return the children of this process that run a wanted program."""
    children = []
    for process in psutil.Process().children():
        with suppress(psutil.Error):
            if any(runs(Path(word)) for word in process.cmdline()[:4]):
                children.append(process)
    return children


def _is_autoscaler(path: Path) -> bool:
    return path.name == AUTOSCALER and {"autoscaler", "ray"} <= set(path.parts)


def _is_log_monitor(path: Path) -> bool:
    return path.name == LOG_MONITOR and "ray" in path.parts
