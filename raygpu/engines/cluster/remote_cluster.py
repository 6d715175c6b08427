"""Connect to a running Ray cluster, request GPUs from its autoscaler, and list its nodes and GPUs."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RuntimeEnvSetupError

from raygpu.devices import host, nvml
from raygpu.devices.gpu_monitor import GpuMonitor
from raygpu.devices.nvml import GIB, Gpu, Reading
from raygpu.devices.selection import listed
from raygpu.engines.cluster import ray_environment, running_cluster, runtime_env
from raygpu.engines.cluster.cluster import Cluster, device, reached, shutdown
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.cluster.job_name import named_job
from raygpu.engines.cluster.node_actors import pinned, visible_of_raylet
from raygpu.engines.cluster.ray_private_api import address_of_auto, wants_token
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.planning.gpu_shares import Node
from raygpu.records import slurm_job
from raygpu.records.device import Device
from raygpu.storage import PROBE, Storage, StorageError, is_job

logger = logging.getLogger(__name__)
ACCELERATOR = "accelerator_type:"
"""Prefix of the resource by which Ray names the type of a node's first GPU."""
NO_RAY = "Could not find any running Ray instance"
"""Phrase of Ray's error where no Ray runs."""
CONNECT_S = 10.0
ANSWER_S = 1.0
EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""First frame of both sides in HTTP/2, without settings; the fourth byte is its type: RFC 9113, section 3.4."""
AUTO = "auto"
KEY = "cluster.address"
"""Key of a configuration that has the address."""
NONE_FREE = (
    "it has no autoscaler, or that has reached its bounds or found none free; wanted: fewer, or a longer"
    " --cluster.wait-s"
)
NODE_MISSING = f"Ray has not started on all nodes of the Slurm job; its output is in the run's {slurm_job.NODES_LOG}"
ASK_S = 2.0
"""Seconds between two checks whether GPUs have joined."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Number of GPUs that a cluster must have before it is used, and how to wait for them."""

    num_gpus: int = 0
    wait_s: float = 0.0
    """Longest wait in seconds."""
    tell: Callable[[str], None] = lambda line: None
    """Called with a line on the GPUs that are still missing."""
    given_up: Event = field(default_factory=Event)
    """Event that ends the wait early."""


def connect(address: str, source_folder: Path | None = None, wanted: Wanted | None = None, job: str = "") -> Cluster:
    """Connect to a running Ray cluster at "auto" or HOST:PORT.

    source_folder: sent to the nodes, with raygpu, if the cluster has several machines, except in a Slurm job. wanted:
    GPUs to wait for. job: name on Ray's dashboard. Raises BadInput if the cluster cannot be joined or has no GPU,
    RaygpuError if the wait is given up.
    """
    context = join(address, job)
    try:
        with _asked_for(wanted or Wanted()):
            brought = source_folder if is_job() else None
            if brought is None and source_folder is not None and _is_to_be_sent():
                shutdown()
                brought, context = source_folder, join(address, job, runtime_env.runtime_env(source_folder))
            devices, nodes, probes, resources = _gpu_nodes()
        if not devices:
            raise BadInput(
                f"cluster.address: the Ray cluster at {address!r} has no node with a GPU; where it has an autoscaler,"
                " --cluster.min-gpus 1 asks for one"
            )
    except BaseException:
        shutdown()
        raise
    dashboard = Dashboard(context.dashboard_url)
    return Cluster(devices, nodes, dashboard, False, brought, _probes=probes, _resources=resources)


def join(address: str, job: str = "", runtime_env: Mapping[str, Any] | None = None, *, key: str = KEY) -> Any:
    """Call `ray.init` for a running cluster, at "auto" or HOST:PORT, and return its context. Raises BadInput.

    job: name on Ray's dashboard. key: begins the line of a fault.
    """
    if ray_environment.is_on_loopback():
        raise BadInput(
            f"{key}: {ray_environment.ON_LOOPBACK}=0 is set, so that Ray listens on 127.0.0.1 alone and joins"
            " no cluster; unset it"
        )
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        is_found = address == AUTO and running_cluster.given_address() in (None, AUTO)
        if address == AUTO:  # Ray itself would show a token to a cluster without tokens, which could not call back
            address = address_of_auto()
        _require_answer(address, key)
        if not _choose_token(address, key, is_found=is_found) and is_found:
            ray_environment.leave_token_to_ray()
            address = AUTO
        return ray.init(
            address=address, job_config=named_job(job), runtime_env=runtime_env and dict(runtime_env), **settings
        )
    except (RuntimeEnvSetupError, AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(_not_joined(address, error, key)) from error


@contextmanager
def _asked_for(wanted: Wanted) -> Iterator[None]:
    """Request the missing GPUs from the cluster's autoscaler, and wait until they have joined. Raises BadInput.

    The request ends with the context, since that of a killed run would keep paid GPUs for nobody. Nodes with an actor
    on them, as the probes are, are not idle, and stay.
    """
    from ray.autoscaler.sdk import request_resources

    began, announced_count = time.monotonic(), -1
    try:
        while (there := _num_gpus()) < wanted.num_gpus:
            if there != announced_count:
                wanted.tell(f"waiting for GPUs: the cluster has {there} of {wanted.num_gpus}; its autoscaler is asked")
                announced_count = there
            if time.monotonic() - began > wanted.wait_s:
                raise BadInput(
                    f"cluster.min_gpus: read {wanted.num_gpus}; the cluster has {there} after {wanted.wait_s:g} s:"
                    f" {NODE_MISSING if slurm_job.is_on_several_nodes() else NONE_FREE}"
                )
            # Repeated each time: a cluster keeps one request only, the last.
            request_resources(bundles=[{"GPU": 1}] * wanted.num_gpus)
            if wanted.given_up.wait(ASK_S):
                raise RaygpuError("nobody waits for the cluster's GPUs any more")
        yield
    finally:
        if announced_count >= 0 and ray.is_initialized():
            try:
                request_resources(bundles=[])
            except Exception:  # a lost cluster, whose own fault is to be seen
                logger.debug("the withdrawal of the request for GPUs", exc_info=True)


def _num_gpus() -> int:
    return sum(int(node["Resources"].get("GPU", 0)) for node in _alive())


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _is_to_be_sent() -> bool:
    """Return whether the nodes get the source folder: with several machines, except those of a Slurm job, which share
    it, with the data that Git ignores."""
    return len({node["NodeManagerAddress"] for node in _alive()}) > 1 and not slurm_job.is_on_several_nodes()


def _require_answer(address: str, key: str) -> None:
    """Raise BadInput if nothing listens at the address: Ray would try for minutes, and ignore Ctrl-C."""
    if "://" in address:
        raise BadInput(f"{key}: read {address!r}; allowed: local, auto, or HOST:PORT of a cluster's head")
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
            is_head = _may_be_head(connection)
    except (OSError, OverflowError) as error:
        advice = "; local starts a Ray" if key == KEY else ""
        raise BadInput(f"{key}: nothing answers at {address!r} ({one_line(error)}){advice}") from error
    if not is_head:
        raise BadInput(f"{key}: read {address!r}, which is no head's port, as the dashboard's; that is often 6379")


def _choose_token(address: str, key: str, *, is_found: bool) -> bool:
    """Show the user's token to a head that wants one; return whether it has answered.

    is_found: whether Ray has found it on this machine. Raises BadInput for one that is named, by RAY_ADDRESS too: its
    token is for the user to turn on.
    """
    if os.environ.get(ray_environment.TOKEN_MODE) == "token":
        return True
    is_wanted = wants_token(address)
    if is_wanted:
        if not is_found or ray_environment.TOKEN_MODE in os.environ:
            raise BadInput(_token_wanted(address, key))
        ray_environment.show_token()
    return is_wanted is not None


def _token_wanted(address: str, key: str) -> str:
    return (
        f"{key}: the Ray cluster at {address!r} wants its token; set RAY_AUTH_MODE=token, and"
        " RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    )


def _may_be_head(connection: socket.socket) -> bool:
    """Return whether a server speaks HTTP/2, as Ray's head does, or says nothing. Ray would wait for any other one."""
    connection.settimeout(ANSWER_S)
    try:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + EMPTY_SETTINGS)
        first = connection.recv(len(EMPTY_SETTINGS))
    except OSError:  # nothing yet, or a connection that was closed, as where TLS is wanted
        return True
    return len(first) < len(EMPTY_SETTINGS) or first[3] == EMPTY_SETTINGS[3]


def _not_joined(address: str, error: Exception, key: str) -> str:
    if isinstance(error, AuthenticationError):
        return _token_wanted(address, key)
    if isinstance(error, RuntimeEnvSetupError) or "package" in str(error).lower():
        return f"experiment: its folder cannot go to the nodes: {one_line(error)}; leave files out by a .rayignore"
    why = "none runs on this machine" if NO_RAY in str(error) else one_line(error)
    return f"{key}: no Ray at {address!r} ({why}); wanted: HOST:PORT of its head, or local, which starts one"


def _gpu_nodes() -> tuple[list[Device], list[Node], dict[str, Any], list[str | None]]:
    """Return the GPUs, the nodes that have them, a probe actor by node id, and Ray's name of each node's GPU type."""
    probes: dict[str, Any] = {}
    devices: list[Device] = []
    nodes: list[Node] = []
    accelerators: list[str | None] = []
    for node in sorted(_alive(), key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        resources = node["Resources"]
        count = int(resources.get("GPU", 0))
        if not count:
            continue
        probe = probes[node["NodeID"]] = _probe(node["NodeID"])
        with reached(node["NodeID"]):
            local_gpus, described_node = ray.get(probe.gpus.remote())
        for place in range(count):
            local_id, gpu = local_gpus[place] if place < len(local_gpus) else (str(place), None)
            devices.append(device(len(devices), node["NodeID"], local_id, gpu))
        accelerators.append(next((name for name in resources if name.startswith(ACCELERATOR)), None))
        # Without NVML's figures, Ray's own count and type hold.
        named = described_node or Node(0, count, 0.0, device=(accelerators[-1] or "").removeprefix(ACCELERATOR))
        memory_gib = resources.get("memory", math.inf) / GIB
        nodes.append(replace(named, num_cpus=resources.get("CPU", 0), num_gpus=count, memory_gib=memory_gib))
    return devices, nodes, probes, accelerators


class _NodeProbe:
    """Ray actor that reads the GPUs and files of a cluster's node."""

    def __init__(self) -> None:
        self._monitor = GpuMonitor()

    def gpus(self) -> tuple[list[tuple[str, Gpu | None]], Node | None]:
        """Return the node's GPUs by Ray's names for them, and the node for the planner; None if NVML shows no GPU."""
        local_gpus = listed(nvml.gpus(), visible_of_raylet())
        nvml_gpus = [gpu for _, gpu in local_gpus if gpu is not None]
        return local_gpus, host.described(nvml_gpus) if nvml_gpus else None

    def try_storage(self, storage: Storage, token: str) -> str | None:
        """Read the token from the storage and write a file there; return why that fails on this node, or None."""
        try:
            if storage.read(PROBE).decode() != token:
                return f"reads another {storage} than this machine's"
            storage.write(PROBE + ray.get_runtime_context().get_node_id(), b"")
        except FileNotFoundError:
            return f"does not see {storage}"
        except (OSError, StorageError) as error:
            return f"cannot write to {storage} ({one_line(error)})"
        return None

    def read(self, uuids: Sequence[str]) -> dict[str, Reading]:
        """Return the readings of GPUs of this node, by UUID."""
        return self._monitor.read(uuids)


def _probe(node_id: str) -> Any:
    return pinned(_NodeProbe, node_id).remote()
