"""Ray as a run uses it: a connection, the GPUs that it has, and its end.

local_ray starts one of the run's own; joining connects to a cluster that runs already.
"""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from raygpu.devices import nvml
from raygpu.devices.nvml import Gpu, Reading
from raygpu.devices.reference import rgu
from raygpu.engines.cluster import runtime_env
from raygpu.engines.cluster.local_nodes import ExtraNode, end
from raygpu.errors import BadInput, one_line
from raygpu.experiment import Source
from raygpu.planning.gpu_shares import Node
from raygpu.runs.trial_records import SIMULATED, Device
from raygpu.storage import PROBE, Storage

LITTLE = 0.001
"""Amount that a trial requests of a type's resource, as Ray itself does: a node has 1 of it."""
NODE_ID = "ray.io/node-id"
"""A label that Ray gives each node."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The resources and labels that lead a trial to the nodes of one device type; none where there is one type."""

    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] | None = None


@dataclass(slots=True)
class Cluster:
    """A connection to Ray, closed by `close`."""

    devices: list[Device]
    nodes: list[Node]
    dashboard_url: str | None
    local: bool
    source_folder: Path | None = None
    """The folder that went to its nodes; None where they see this machine's files."""
    _probes: dict[str, Any] = field(default_factory=dict)
    _resources: list[str | None] = field(default_factory=list)
    """Ray's name for the type of each node's GPUs, a resource of that node; None where it has no such name."""
    _extra: list[ExtraNode] = field(default_factory=list)

    def device_index(self, node_id: str, gpu_ids: Sequence[str]) -> int | None:
        """The sweep's number of the first GPU that a worker was given."""
        wanted = {str(gpu_id) for gpu_id in gpu_ids}
        found = (d.index for d in self.devices if d.node_id == node_id and d.local_id in wanted)
        return next(found, None)

    def device_memory_gib(self, device_type: str) -> float:
        """Return the memory of a device of this type; of a simulated one, the host's part for it."""
        of = [node for node in self.nodes if node.device_type == device_type]
        return min(node.device_gib or node.memory_gib / node.num_gpus for node in of)

    def needed(self, device_type: str) -> Needed:
        """Return a trial's request of Ray beside CPUs and GPUs, to be placed on this type of device."""
        if len({node.device_type for node in self.nodes}) == 1:
            return Needed()
        of = [index for index, node in enumerate(self.nodes) if node.device_type == device_type]
        others = [resource for index, resource in enumerate(self._resources) if index not in of]
        own = {self._resources[index] for index in of}
        if len(own) == 1 and (resource := own.pop()) is not None and resource not in others:
            return Needed({resource: LITTLE})
        node_ids = list(dict.fromkeys(device.node_id for device in self.devices))
        return Needed({}, {NODE_ID: f"in({','.join(node_ids[index] for index in of)})"})

    def node_of(self, device: Device) -> Node:
        """The node that has it."""
        node_ids = list(dict.fromkeys(other.node_id for other in self.devices))
        return self.nodes[node_ids.index(device.node_id)]

    def places(self) -> tuple[tuple[str, str], ...]:
        """The node and Ray's name of each device, in the order of their indices."""
        return tuple((device.node_id, device.local_id) for device in self.devices)

    def readings(self) -> dict[int, Reading]:
        """Return NVML's present reading of each GPU; a GPU that cannot be asked is left out."""
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

    def travelled(self, source: Source) -> Source:
        """The same code as workers find it. Raises BadInput."""
        return source if self.source_folder is None else runtime_env.travelled(source, self.source_folder)

    def require(self, storage: Storage) -> None:
        """Every node has to read what is written there, and the other way round: tried.

        Raises BadInput with a line for each that does not.
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

    def address_line(self) -> str:
        if self.dashboard_url is None:
            return "Ray dashboard: not running (pip install ray[default])"
        # Ray turns tokens on for a local cluster, unless told not to.
        own = self.local and os.environ.get("RAY_AUTH_MODE") == "token"
        token = " (its token: ray get-auth-token)" if own else ""
        return f"Ray dashboard: {self.dashboard_url}{token}"

    def close(self) -> None:
        """Disconnect, and end the Ray that `start_local` began."""
        end_local(self._extra)


def device(index: int, node_id: str, local_id: str, gpu: Gpu | None) -> Device:
    """Number `index` of a run's; without a GPU, a simulated one."""
    if gpu is None:
        return Device(index, node_id, local_id, SIMULATED)
    return Device(index, node_id, local_id, gpu.name, gpu.uuid, gpu.memory_gib, rgu(gpu.name, gpu.memory_gib))


def end_local(extra: Sequence[ExtraNode]) -> None:
    """End a local Ray: its other nodes first, while there is a head to tell of it."""
    try:
        end(extra)
    finally:
        shutdown()


@contextmanager
def reached(node_id: str) -> Iterator[None]:
    """Raises BadInput where a node does not answer, or cannot make what came along."""
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


def shutdown() -> None:
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


def url(address: str | None) -> str | None:
    return f"http://{address}" if address else None
