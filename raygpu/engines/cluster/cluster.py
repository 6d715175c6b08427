"""A run's connection to Ray: the cluster's GPUs and nodes, and its shutdown.

`local_cluster` starts a Ray for the run alone; `remote_cluster` connects to a running cluster.
"""

from __future__ import annotations

import atexit
import gc
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from raygpu.config.source import Source
from raygpu.devices.gpu_monitor import GpuMonitor
from raygpu.devices.nvml import Gpu, Reading
from raygpu.devices.rgu import rgu
from raygpu.engines.cluster import orphan_processes, ray_files, runtime_env
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.cluster.local_nodes import ExtraNode, end
from raygpu.engines.cluster.ray_private_api import kill_autoscaler
from raygpu.errors import BadInput, one_line
from raygpu.planning.gpu_shares import Node
from raygpu.records import scratch
from raygpu.records.device import SIMULATED, Device
from raygpu.storage import PROBE, Storage

CONNECT_S = 2.0
SETTLE_S = 1.0
"""Seconds for which this process keeps off Ray after an interrupt, which Ray may have got, too."""
READ_S = 2.0
"""Longest wait in seconds for the readings of all nodes."""
ENDING_S = 10.0
"""Seconds that a Ray which was told to end has for it."""
LOOK_S = 0.1
LITTLE = 0.001
"""Amount of a device type's resource that a trial requests, as Ray itself does; a node has 1 of it."""
NODE_ID = "ray.io/node-id"
"""Label that Ray gives each node, with the node's id."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """Ray resources and node labels that place a trial on one device type; empty where all devices have one type."""

    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None


@dataclass(slots=True)
class Cluster:
    """A connection to Ray, closed by `close`."""

    devices: list[Device]
    nodes: list[Node]
    dashboard: Dashboard
    local: bool
    source_folder: Path | None = None
    """Source folder that was sent to the nodes; None where they see this machine's files."""
    _probes: dict[str, Any] = field(default_factory=dict)
    _resources: list[str | None] = field(default_factory=list)
    """Ray's name for the type of each node's GPUs, a resource of that node; None where it has no such name."""
    _extra: list[ExtraNode] = field(default_factory=list)
    _monitor: GpuMonitor = field(default_factory=GpuMonitor)
    log_monitor: psutil.Process | None = None
    """Process of the local Ray that follows its logs; None of a Ray that this process has not started."""
    _closing: Future[None] | None = None
    """The end of Ray that `begin_close` has begun; None before that."""

    def device_index(self, node_id: str, gpu_ids: Sequence[str]) -> int | None:
        """Return the run's index of the first device that Ray gave a worker; None if it is not one of the run's."""
        wanted = {str(gpu_id) for gpu_id in gpu_ids}
        indices = (d.index for d in self.devices if d.node_id == node_id and d.local_id in wanted)
        return next(indices, None)

    def device_memory_gib(self, device_type: str) -> float:
        """Return the memory of a device of this type in GiB; a simulated device has its share of the host's memory."""
        of = [node for node in self.nodes if node.device_type == device_type]
        return min(node.device_gib or node.memory_gib / node.num_gpus for node in of)

    def needed(self, device_type: str) -> PlacementRequest:
        """Return the resources or labels that a trial requests from Ray to be placed on this type of device."""
        if len({node.device_type for node in self.nodes}) == 1:
            return PlacementRequest()
        of = [index for index, node in enumerate(self.nodes) if node.device_type == device_type]
        others = [resource for index, resource in enumerate(self._resources) if index not in of]
        resources = {self._resources[index] for index in of}
        if len(resources) == 1 and (resource := resources.pop()) is not None and resource not in others:
            return PlacementRequest({resource: LITTLE})
        node_ids = list(dict.fromkeys(device.node_id for device in self.devices))
        return PlacementRequest({}, {NODE_ID: f"in({','.join(node_ids[index] for index in of)})"})

    def node_of(self, device: Device) -> Node:
        """Return the node that has a device."""
        node_ids = list(dict.fromkeys(other.node_id for other in self.devices))
        return self.nodes[node_ids.index(device.node_id)]

    def places(self) -> tuple[tuple[str, str], ...]:
        """Return the node id and Ray's name of each device, in the order of their indices."""
        return tuple((device.node_id, device.local_id) for device in self.devices)

    def gpus_in_use(self) -> float:
        """Return the number of a running cluster's GPUs that others have reserved; 0 of a Ray of this machine."""
        if self.local:
            return 0.0
        return float(ray.cluster_resources().get("GPU", 0.0) - ray.available_resources().get("GPU", 0.0))

    def readings(self) -> dict[int, Reading]:
        """Return each GPU's readings, by device index; a GPU that cannot be asked is left out."""
        uuids: dict[str, list[str]] = {}
        for device in self.devices:
            if device.uuid is not None:
                uuids.setdefault(device.node_id, []).append(device.uuid)
        by_uuid: dict[str, Reading] = {}
        asked = [self._probes[node].read.remote(wanted) for node, wanted in uuids.items() if node in self._probes]
        for node, wanted in uuids.items():
            if node not in self._probes:
                by_uuid |= self._monitor.read(wanted)
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=READ_S) if asked else ([], [])
        for call in ready:
            with suppress(ray.exceptions.RayError):  # a node that is slow or gone reads nothing this time
                by_uuid |= ray.get(call)
        return {d.index: by_uuid[d.uuid] for d in self.devices if d.uuid in by_uuid}

    def travelled(self, source: Source) -> Source:
        """Return the source with the paths that workers see. Raises BadInput if it is outside of the sent folder."""
        return source if self.source_folder is None else runtime_env.travelled(source, self.source_folder)

    def require(self, storage: Storage) -> None:
        """Check that every node reads this machine's files in the storage and writes files that this machine sees.

        Raises BadInput with one line for each node that does not.
        """
        if not self._probes:
            return
        token = uuid.uuid4().hex
        storage.write(PROBE, token.encode())
        try:
            asked = {node: probe.try_storage.remote(storage, token) for node, probe in self._probes.items()}
            faults = []
            for node, call in asked.items():
                with reached(node):
                    fault = ray.get(call) or _not_seen(storage, node)
                if fault is not None:
                    wanted = "all nodes need it: --storage s3://BUCKET/FOLDER, or a folder that they share"
                    faults.append(f"storage: node {node[:8]} {fault}; {wanted}")
        finally:
            storage.discard(PROBE)
        if faults:
            raise BadInput(faults)

    def tell_address(self, say: Callable[[str], None]) -> None:
        """Say the URL of Ray's dashboard once it has started, and the command for its token where it needs one."""
        # Ray turns tokens on for a local cluster, unless told not to.
        has_token = self.local and os.environ.get("RAY_AUTH_MODE") == "token"
        token = " (its token: ray get-auth-token)" if has_token else ""
        missing = "Ray dashboard: not running (it needs: pip install ray[default])"
        self.dashboard.then(lambda url: say(missing if url is None else f"Ray dashboard: {url}{token}"))

    def detail_lines(self) -> list[str]:
        """Return lines on the devices, and on where Ray's logs are."""
        lines = [f"gpu {d.index}: {d.name}, {d.uuid or 'no UUID'}, node {d.node_id[:8]}" for d in self.devices]
        where = ray_files.logs() if self.local else None
        return [*lines, f"Ray's logs: {where if where is not None else 'on each node, /tmp/ray/session_latest/logs'}"]

    def begin_close(self) -> None:
        """Begin `close` in a thread and return at once: Ray takes a second to end its processes.

        The caller may do anything meanwhile but call Ray, and still has to call `close`, which waits for the end.
        """
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray-end")
        self._closing = pool.submit(self._close)
        pool.shutdown(wait=False)

    def close(self) -> None:
        """Disconnect from Ray, and end the local Ray that `start_local` began, unless it has been ended by others."""
        if self._closing is not None:
            self._closing.result()
        else:
            self._close()

    def _close(self) -> None:
        self.dashboard.close()
        until = time.monotonic() + ENDING_S
        while self.is_ending() and head_answers() and time.monotonic() < until:
            time.sleep(LOOK_S)
        if head_answers():
            end_local(self._extra)
        else:
            atexit.unregister(ray.shutdown)  # a thread that still waits for this Ray would end the process by SIGSEGV
            orphan_processes.end()

    def is_ending(self) -> bool:
        """Return whether Ray has ended or is about to: the process that follows its logs is the first to end where
        SIGTERM is sent to all processes of a command."""
        return has_ended(self.log_monitor) or not head_answers()

    def require_head(self, *, settle: bool) -> None:
        """Raise KeyboardInterrupt if the signal that interrupted this process ends Ray, too.

        settle: whether to wait for what the other processes do: a call to a raylet that is ending ends this process.
        """
        if settle and not self.is_ending():
            time.sleep(SETTLE_S)
        if self.is_ending():
            raise KeyboardInterrupt


def device(index: int, node_id: str, local_id: str, gpu: Gpu | None) -> Device:
    """Return the run's device number `index`, a simulated one if `gpu` is None. local_id: Ray's name of the GPU."""
    if gpu is None:
        return Device(index, node_id, local_id, SIMULATED)
    return Device(index, node_id, local_id, gpu.name, gpu.uuid, gpu.memory_gib, rgu(gpu.name, gpu.memory_gib))


def end_local(extra: Sequence[ExtraNode]) -> None:
    """End a local Ray with all that its trials have started: its extra nodes first, while there is a head that they
    can report to."""
    try:
        end(extra)
    finally:
        kill_autoscaler()
        shutdown()
        orphan_processes.end()
        with suppress(OSError):  # the next command deletes them
            scratch.delete_abandoned()


@contextmanager
def reached(node_id: str) -> Iterator[None]:
    """Turn Ray's errors about a node into BadInput: it does not answer, or cannot set up the runtime environment."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise BadInput(f"cluster.address: node {node_id[:8]} cannot be used: {one_line(error)}") from error


def _not_seen(storage: Storage, node_id: str) -> str | None:
    """Return why this machine does not see a node's file, or None; a file that it sees is removed."""
    name = PROBE + node_id
    if not storage.has(name):
        return f"writes to another {storage} than this machine's"
    storage.discard(name)
    return None


def spare_from_collections() -> None:
    """Leave all present objects out of garbage collections until `shutdown`.

    A command's libraries have made some 500,000 of them, which live as long as the process: a whole collection takes
    half a second, in the middle of the trials, and once more before Ray's end.
    """
    gc.freeze()


def shutdown() -> None:
    """Call `ray.shutdown` while no other thread may collect garbage.

    The errors of lost workers hold object references in cycles. Freed while Ray shuts down, by a collection that some
    other thread happens to trigger, such a reference reaches a core worker that is gone, and Ray ends the whole process
    with status 1 and no word ("The core worker has already been shutdown").
    """
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        ray.shutdown()
    finally:
        gc.unfreeze()
        if enabled:
            gc.enable()


def has_ended(process: psutil.Process | None) -> bool:
    """Return whether a process has ended; False of None."""
    try:
        return process is not None and process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def lost(servers: Mapping[str, psutil.Process]) -> str | None:
    """Return the name of a server of Ray that has ended, None while all run."""
    return next((name for name, process in servers.items() if has_ended(process)), None)


def head_answers() -> bool:
    """Return whether Ray's head takes connections. Without one, Ray's calls wait for a minute and end the process."""
    if not ray.is_initialized():
        return True
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return True
    except ConnectionRefusedError:
        return False
    except OSError:  # slow, or out of reach for now
        return True
