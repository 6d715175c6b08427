"""Ray itself: a local one for this sweep or a cluster that runs already, its GPUs, and its end."""

from __future__ import annotations

import gc
import logging
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from raygpu.devices import nvml
from raygpu.devices.host import node as local_node
from raygpu.devices.nvml import GIB, Gpu, Reading
from raygpu.devices.selection import listed
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.packing import Node
from raygpu.records import SIMULATED, Device

HIDDEN = "-1"
"""In CUDA_VISIBLE_DEVICES: no GPU, which Ray counts, and gives to a worker, as one of that name."""


@dataclass(slots=True)
class Cluster:
    """A connection to Ray, closed by `close`."""

    devices: list[Device]
    nodes: list[Node]
    dashboard_url: str | None
    local: bool
    _probes: dict[str, Any] = field(default_factory=dict)

    def device_index(self, node_id: str, gpu_ids: Sequence[str]) -> int | None:
        """The sweep's number of the first GPU that a worker was given."""
        wanted = {str(gpu_id) for gpu_id in gpu_ids}
        found = (d.index for d in self.devices if d.node_id == node_id and d.local_id in wanted)
        return next(found, None)

    def free_gib(self) -> float | None:
        """Of the GPU of this machine that has the least memory free; None where that is not told."""
        rooms = [nvml.memory(device.uuid) for device in self.devices if device.uuid is not None] if self.local else []
        return min((room.free_gib for room in rooms if room is not None), default=None)

    def device_memory_gib(self) -> float:
        """Of the smallest device; of a simulated one, what the host has for it."""
        return min(device.memory_gib or self._host_gib(device) for device in self.devices)

    def _host_gib(self, device: Device) -> float:
        node = self.node_of(device)
        return node.memory_gib / node.num_gpus

    def node_of(self, device: Device) -> Node:
        """The node that has it."""
        node_ids = list(dict.fromkeys(other.node_id for other in self.devices))
        return self.nodes[node_ids.index(device.node_id)]

    def readings(self) -> dict[int, Reading]:
        """What NVML tells of each GPU now; a GPU that cannot be asked is left out."""
        uuids: dict[str, list[str]] = {}
        for device in self.devices:
            if device.uuid is not None:
                uuids.setdefault(device.node_id, []).append(device.uuid)
        by_uuid: dict[str, Reading] = {}
        for node_id, wanted in uuids.items():
            if node_id not in self._probes:
                by_uuid |= nvml.read(wanted)
                continue
            try:
                by_uuid |= ray.get(self._probes[node_id].read.remote(wanted), timeout=2)
            except ray.exceptions.RayError:
                continue  # a node that is slow or gone reads nothing this time
        return {d.index: by_uuid[d.uuid] for d in self.devices if d.uuid in by_uuid}

    def require(self, paths: Sequence[Path]) -> None:
        """Every node has to see these. Raises BadInput with a line for each that one does not."""
        wanted = [str(path) for path in paths]
        unseen = {node: ray.get(probe.missing.remote(wanted)) for node, probe in self._probes.items()}
        faults = [
            f"cluster.address: node {node[:8]} does not see {path}; put it on storage that all nodes share"
            for node, missing in unseen.items()
            for path in missing
        ]
        if faults:
            raise BadInput(faults)

    def address_line(self) -> str:
        if self.dashboard_url is None:
            return "Ray dashboard: not running (pip install ray[default])"
        # Ray turns tokens on for a local cluster, unless told not to.
        token = " (its token: ray get-auth-token)" if os.environ.get("RAY_AUTH_MODE") == "token" else ""
        return f"Ray dashboard: {self.dashboard_url}{token}"

    def close(self) -> None:
        """Disconnect, and end the Ray that `start_local` began."""
        _shutdown()


@contextmanager
def in_background(address: str, gpus: Sequence[Gpu]) -> Iterator[Future[Cluster]]:
    """Start or join Ray in a thread while the caller does something else; closed at the end, whatever happens."""
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray") as pool:
        starting = pool.submit(start_local, gpus) if address == "local" else pool.submit(connect, address)
        try:
            yield starting
        finally:
            if starting.exception() is None:
                starting.result().close()


def start_local(gpus: Sequence[Gpu]) -> Cluster:
    """Start a Ray on loopback with these GPUs, or with one simulated GPU where there are none."""
    node = local_node(len(gpus))
    # By UUID: the order that CUDA counts in may differ from NVML's.
    with _environment("CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus) or HIDDEN):
        context = _init_local(node)
    node_id = ray.get_runtime_context().get_node_id()
    if gpus:
        devices = [Device(i, node_id, gpu.uuid, gpu.name, gpu.uuid, gpu.memory_gib) for i, gpu in enumerate(gpus)]
    else:
        devices = [Device(0, node_id, HIDDEN, SIMULATED)]
    return Cluster(devices, [node], _url(context.dashboard_url), local=True)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A variable as the processes that are started meanwhile see it; this process gets its own back."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _init_local(node: Node) -> Any:
    """`ray.init`, once more where the first start ran into Ray's fixed limit of 30 s: a cold, busy machine."""
    for attempt in (1, 2):
        try:
            return ray.init(
                address="local",
                num_cpus=int(node.num_cpus),
                num_gpus=node.num_gpus,
                dashboard_host="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises a bare Exception for it
            _shutdown()
            if attempt == 2 or "timed out" not in str(error):
                raise RaygpuError(f"Ray did not start: {one_line(error)}") from error
    raise AssertionError("not reached")


def connect(address: str) -> Cluster:
    """Connect to a Ray cluster that runs already: "auto" or HOST:PORT. Raises BadInput."""
    try:
        context = ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(f"cluster.address: no Ray at {address!r} ({one_line(error)}); local starts one") from error
    try:
        devices, nodes, probes = _gpu_nodes()
        if not devices:
            raise BadInput(f"cluster.address: the Ray cluster at {address!r} has no node with a GPU")
    except BaseException:
        _shutdown()
        raise
    return Cluster(devices, nodes, _url(context.dashboard_url), local=False, _probes=probes)


def _gpu_nodes() -> tuple[list[Device], list[Node], dict[str, Any]]:
    """The cluster's GPUs, the nodes that have them, and an actor on each that can ask NVML, by node id."""
    probes: dict[str, Any] = {}
    devices: list[Device] = []
    nodes: list[Node] = []
    for node in sorted(ray.nodes(), key=lambda node: (node["NodeManagerAddress"], node["NodeID"])):
        resources = node["Resources"]
        count = int(resources.get("GPU", 0))
        if not node["Alive"] or not count:
            continue
        probe = probes[node["NodeID"]] = _probe(node["NodeID"])
        found = ray.get(probe.gpus.remote())
        for place in range(count):
            local_id, gpu = found[place] if place < len(found) else (str(place), None)
            name = gpu.name if gpu else SIMULATED
            devices.append(
                Device(len(devices), node["NodeID"], local_id, name, gpu and gpu.uuid, gpu and gpu.memory_gib)
            )
        nodes.append(Node(resources.get("CPU", 0), count, resources.get("memory", math.inf) / GIB))
    return devices, nodes, probes


def _shutdown() -> None:
    """`ray.shutdown`, while no other thread may collect garbage.

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
        if enabled:
            gc.enable()


class _NodeProbe:
    """The eyes of a sweep on another node: its GPUs and files."""

    def gpus(self) -> list[tuple[str, Gpu | None]]:
        """What Ray calls the node's GPUs, and which they are."""
        # Ray changes the variable for its workers; the raylet, their parent, has it as the node was started.
        variables = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        prefix = b"CUDA_VISIBLE_DEVICES="
        visible = next((v.removeprefix(prefix).decode() for v in variables if v.startswith(prefix)), None)
        return listed(nvml.gpus(), visible)

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Those that do not exist on this node."""
        return [path for path in paths if not Path(path).exists()]

    def read(self, uuids: Sequence[str]) -> dict[str, Reading]:
        return nvml.read(uuids)


def _probe(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(_NodeProbe).options(num_cpus=0, scheduling_strategy=here).remote()


def _url(address: str | None) -> str | None:
    return f"http://{address}" if address else None
