"""Environment variables of Ray and of its processes; raygpu sets those that Ray reads before Ray is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SETTINGS = {
    "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # the order of NVML, by which raygpu and Ray number GPUs; CUDA's is by speed
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "180",  # ten processes: a cold machine of two cores takes its time
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # raygpu has its own console output, files and checks.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon the end of a training, or of a worker, is noticed
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "PL_DISABLE_FORK": "1",  # as Tune sets it in its workers: https://github.com/ray-project/ray/issues/28197
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}
ON_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Variable that makes Ray listen on 127.0.0.1 alone if it is 0, the default on Windows and macOS."""
PREEMPTION_WATCHER = "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"
"""Variable that says whether a training has a process that watches for nodes which Ray is told to drain."""
LOCAL = {ON_LOOPBACK: "0", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", PREEMPTION_WATCHER: "0"}
"""Settings of a local Ray and of its training's ranks: everything stays on loopback, and no node is drained."""


TOKEN_MODE = "RAY_AUTH_MODE"
"""Variable that Ray sets to `token` in a process that starts a local Ray, unless the user has given it."""
_own: set[str] = set()
"""Names of variables that raygpu or Ray has set, and not the user, for the Ray that this process has used last."""


def prepare(*, local: bool = False, starts: bool | None = None) -> None:
    """Set Ray's environment variables; the user's own values stay. Call it before each start of Ray.

    local: whether this process' Ray stays on loopback, or is a cluster's; it may do either after the other. starts:
    whether it is started here, or by the service of this user; by default as `local`.
    """
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    starts = local if starts is None else starts
    if starts:
        leave_token_to_ray()
    elif not starts and TOKEN_MODE in _own:
        _own.remove(TOKEN_MODE)
        _forget_token_mode()
    for name, value in LOCAL.items():
        if local and name not in os.environ:
            os.environ[name] = value
            _own.add(name)
        elif not local and name in _own:
            del os.environ[name]
            _own.remove(name)
    if "ray" in sys.modules:  # which has read the variable already
        from raygpu.engines.cluster.ray_private_api import bind_to_loopback

        bind_to_loopback(is_on_loopback())


def show_token() -> None:
    """Have this process show the user's token to the cluster that it calls next, unless the user has given a mode.

    The next `prepare` of another cluster forgets it.
    """
    if TOKEN_MODE in os.environ and TOKEN_MODE not in _own:
        return
    os.environ[TOKEN_MODE] = "token"
    _own.add(TOKEN_MODE)
    _read_token_mode()


def leave_token_to_ray() -> None:
    """Note that Ray may turn on the user's token, unless the user has given a mode; the next `prepare` of another
    cluster forgets it."""
    if TOKEN_MODE not in os.environ:
        _own.add(TOKEN_MODE)


def _forget_token_mode() -> None:
    """Leave it to Ray again whether this process wants a token: a cluster without tokens could not call it back."""
    if os.environ.get(TOKEN_MODE) == "token":
        del os.environ[TOKEN_MODE]
    _read_token_mode()


def _read_token_mode() -> None:
    if "ray" in sys.modules:  # which has read the variable already
        from raygpu.engines.cluster.ray_private_api import read_token_mode

        read_token_mode()


def is_on_loopback() -> bool:
    """Return whether this process's Ray is bound to loopback, and so cannot join other machines."""
    return os.environ.get(ON_LOOPBACK) == "0"


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable meanwhile, for processes that are started too, and restore its value afterwards."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables that a process was started with; none for one that has ended."""
    try:
        parts = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (os.fsdecode(part).partition("=") for part in parts if b"=" in part)
    return {name: value for name, _, value in pairs}
