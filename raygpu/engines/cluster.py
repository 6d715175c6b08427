"""Ray itself: a local one for this sweep or a cluster that runs already, its GPUs, and its end."""

from __future__ import annotations

import gc
import logging
import math
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import AuthenticationError, RuntimeEnvSetupError

from raygpu.devices import host, nvml
from raygpu.devices.nvml import GIB, Gpu, Reading
from raygpu.devices.reference import rgu
from raygpu.devices.selection import listed
from raygpu.engines import environment, travel
from raygpu.engines.box import ExtraNode, end, wait_for
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.experiment import Source
from raygpu.packing import Node
from raygpu.records import SIMULATED, Device
from raygpu.sections import OWN_RAY
from raygpu.storage import PROBE, Storage, StorageError
from raygpu.whereabouts import JOB_VARIABLE, is_job

HIDDEN = "-1"
"""In CUDA_VISIBLE_DEVICES: no GPU, which Ray counts, and gives to a worker, as one of that name."""
ACCELERATOR = "accelerator_type:"
"""Begins the resource by which Ray names the type of a node's first GPU."""
TYPE_RESOURCE = "raygpu:"
"""Begins ours, which names a type of this machine's: Ray takes two sizes of a card for one type."""
LITTLE = 0.001
"""What a trial asks of such a resource, as Ray does: a node has 1 of it."""
NODE_ID = "ray.io/node-id"
"""A label that Ray gives each node."""


@dataclass(frozen=True, slots=True)
class Needed:
    """What leads a trial to the nodes of one device type; nothing where there is one type."""

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
    """What went to its nodes; None where they see this machine's files."""
    _probes: dict[str, Any] = field(default_factory=dict)
    _resources: list[str | None] = field(default_factory=list)
    """What Ray calls the type of each node's GPUs, a resource of that node; None where it has no such name."""
    _extra: list[ExtraNode] = field(default_factory=list)

    def device_index(self, node_id: str, gpu_ids: Sequence[str]) -> int | None:
        """The sweep's number of the first GPU that a worker was given."""
        wanted = {str(gpu_id) for gpu_id in gpu_ids}
        found = (d.index for d in self.devices if d.node_id == node_id and d.local_id in wanted)
        return next(found, None)

    def device_memory_gib(self, device_type: str) -> float:
        """Of a device of this type; of a simulated one, what the host has for it."""
        of = [node for node in self.nodes if node.device_type == device_type]
        return min(node.device_gib or node.memory_gib / node.num_gpus for node in of)

    def needed(self, device_type: str) -> Needed:
        """What a trial asks of Ray beside CPUs and GPUs, to be placed on this type of device."""
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

    def travelled(self, source: Source) -> Source:
        """The same code as workers find it. Raises BadInput."""
        return source if self.source_folder is None else travel.travelled(source, self.source_folder)

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
                with _reached(node):
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
        _end_local(self._extra)


@contextmanager
def in_background(
    address: str, gpus: Sequence[Gpu], source_folder: Path, *, apart: bool = True
) -> Iterator[Future[Cluster]]:
    """Start or join Ray in a thread while the caller does something else; closed at the end, whatever happens.

    source_folder: of the code that workers run, which goes to a cluster's nodes. apart: whether this machine's unequal
    GPUs are kept apart.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="ray") as pool:
        if address == OWN_RAY:
            starting = pool.submit(start_local, gpus, apart=apart)
        else:
            starting = pool.submit(connect, address, source_folder)
        try:
            yield starting
        finally:
            if starting.exception() is None:
                starting.result().close()


def start_local(gpus: Sequence[Gpu], *, apart: bool = True) -> Cluster:
    """Start a Ray on loopback with these GPUs, or with one simulated GPU where there are none.

    apart: GPUs of several types get a Ray node for each type: of a node, Ray knows the first GPU's type alone.
    """
    nodes = host.nodes(gpus, apart=apart)
    if len(nodes) > 1:
        return _start_apart(nodes, host.types(gpus), gpus)
    # By UUID: the order that CUDA counts in may differ from NVML's.
    with _environment("CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus) or HIDDEN):
        context = _init_local(nodes[0])
    node_id = ray.get_runtime_context().get_node_id()
    devices = [_device(i, node_id, gpu.uuid, gpu) for i, gpu in enumerate(gpus)]
    return Cluster(devices or [Device(0, node_id, HIDDEN, SIMULATED)], nodes, _url(context.dashboard_url), local=True)


def _start_apart(nodes: list[Node], types: Sequence[Sequence[Gpu]], gpus: Sequence[Gpu]) -> Cluster:
    """A Ray with a node for each type, the first one's the head."""
    resources = [type_resource(node.device_type) for node in nodes]
    visible = [",".join(gpu.uuid for gpu in of) for of in types]
    extra: list[ExtraNode] = []
    try:
        with _environment("CUDA_VISIBLE_DEVICES", visible[0]):
            context = _init_local(nodes[0], {resources[0]: 1})
        for node, shown, resource in list(zip(nodes, visible, resources, strict=True))[1:]:
            address, logs = context.address_info["gcs_address"], Path(context.address_info["session_dir"]) / "logs"
            num_cpus = math.ceil(node.num_cpus)
            extra.append(ExtraNode(address, num_cpus, node.num_gpus, shown, resource, _plain(node.device_type), logs))
        joined = wait_for(extra)
    except BaseException:
        _end_local(extra)
        raise
    node_ids = [ray.get_runtime_context().get_node_id(), *(joined[_plain(node.device_type)] for node in nodes[1:])]
    by_uuid = {gpu.uuid: node_id for of, node_id in zip(types, node_ids, strict=True) for gpu in of}
    devices = [_device(i, by_uuid[gpu.uuid], gpu.uuid, gpu) for i, gpu in enumerate(gpus)]
    return Cluster(devices, nodes, _url(context.dashboard_url), local=True, _resources=list(resources), _extra=extra)


def type_resource(device_type: str) -> str:
    """Ray's name of a type of this machine's."""
    return TYPE_RESOURCE + _plain(device_type)


def _plain(device_type: str) -> str:
    """Of letters, digits and hyphens: Ray hands its lists of resources on with commas between."""
    return re.sub(r"[^0-9A-Za-z]+", "-", device_type)


def _device(index: int, node_id: str, local_id: str, gpu: Gpu | None) -> Device:
    if gpu is None:
        return Device(index, node_id, local_id, SIMULATED)
    return Device(index, node_id, local_id, gpu.name, gpu.uuid, gpu.memory_gib, rgu(gpu.name, gpu.memory_gib))


def _end_local(extra: Sequence[ExtraNode]) -> None:
    """End a local Ray: its other nodes first, while there is a head to tell of it."""
    try:
        end(extra)
    finally:
        _shutdown()


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


def _init_local(node: Node, resources: Mapping[str, float] | None = None) -> Any:
    """`ray.init`, once more where the first start ran into Ray's fixed limit of 30 s: a cold, busy machine."""
    # Where this is a job of another cluster's: what came along with it is no part of this one's.
    os.environ.pop(JOB_VARIABLE, None)
    for attempt in (1, 2):
        try:
            return ray.init(
                address="local",
                num_cpus=math.ceil(node.num_cpus),  # the plan keeps to the exact part
                num_gpus=node.num_gpus,
                resources=dict(resources or {}),
                dashboard_host="127.0.0.1",
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except Exception as error:  # Ray raises a bare Exception for it
            _shutdown()
            if attempt == 2 or "timed out" not in str(error):
                raise RaygpuError(f"Ray did not start: {one_line(error)}") from error
    raise AssertionError("not reached")


def connect(address: str, source_folder: Path | None = None) -> Cluster:
    """Connect to a Ray cluster that runs already: "auto" or HOST:PORT. Raises BadInput.

    source_folder: goes to its nodes, with raygpu, where some are other machines than this.
    """
    if environment.is_on_loopback():
        raise BadInput(
            "cluster.address: this process has had a Ray of its own, on 127.0.0.1; connect from a new process"
        )
    context = _joined(address)
    if is_job():
        brought = source_folder
    elif source_folder is not None and len({node["NodeManagerAddress"] for node in _alive()}) > 1:
        _shutdown()
        brought, context = source_folder, _joined(address, travel.runtime_env(source_folder))
    else:
        brought = None
    try:
        devices, nodes, probes, resources = _gpu_nodes()
        if not devices:
            raise BadInput(f"cluster.address: the Ray cluster at {address!r} has no node with a GPU")
    except BaseException:
        _shutdown()
        raise
    url = _url(context.dashboard_url)
    return Cluster(devices, nodes, url, False, brought, _probes=probes, _resources=resources)


def _joined(address: str, runtime_env: Mapping[str, Any] | None = None) -> Any:
    """`ray.init`. Raises BadInput."""
    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        return ray.init(address=address, runtime_env=runtime_env and dict(runtime_env), **settings)
    except (RuntimeEnvSetupError, AuthenticationError, ConnectionError, ValueError, RuntimeError) as error:
        raise BadInput(_not_joined(address, error)) from error


def _alive() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _not_joined(address: str, error: Exception) -> str:
    if isinstance(error, AuthenticationError):
        return (
            f"cluster.address: the Ray cluster at {address!r} wants its token; set RAY_AUTH_MODE=token, and"
            " RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        )
    if isinstance(error, RuntimeEnvSetupError) or "package" in str(error).lower():
        return f"experiment: its folder cannot go to the nodes: {one_line(error)}; leave files out by a .rayignore"
    return f"cluster.address: no Ray at {address!r} ({one_line(error)}); local starts one"


@contextmanager
def _reached(node_id: str) -> Iterator[None]:
    """Raises BadInput where a node does not answer, or cannot make what came along."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise BadInput(f"cluster.address: node {node_id[:8]} cannot be used: {one_line(error)}") from error


def _not_seen(storage: Storage, node_id: str) -> str | None:
    """What a node wrote, read here."""
    name = PROBE + node_id
    if not storage.has(name):
        return f"writes to another {storage} than this machine's"
    storage.discard(name)
    return None


def _gpu_nodes() -> tuple[list[Device], list[Node], dict[str, Any], list[str | None]]:
    """The cluster's GPUs, the nodes that have them, an actor on each that can ask NVML, by node id, and Ray's names of
    the nodes' accelerators."""
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
        with _reached(node["NodeID"]):
            found, told = ray.get(probe.gpus.remote())
        for place in range(count):
            local_id, gpu = found[place] if place < len(found) else (str(place), None)
            devices.append(_device(len(devices), node["NodeID"], local_id, gpu))
        accelerators.append(next((name for name in resources if name.startswith(ACCELERATOR)), None))
        # A node that NVML tells nothing of has what Ray was told.
        named = told or Node(0, count, 0.0, device=(accelerators[-1] or "").removeprefix(ACCELERATOR))
        memory_gib = resources.get("memory", math.inf) / GIB
        nodes.append(replace(named, num_cpus=resources.get("CPU", 0), num_gpus=count, memory_gib=memory_gib))
    return devices, nodes, probes, accelerators


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

    def gpus(self) -> tuple[list[tuple[str, Gpu | None]], Node | None]:
        """What Ray calls the node's GPUs, and which they are; and what a plan has to know of them."""
        # Ray changes the variable for its workers; the raylet, their parent, has it as the node was started.
        variables = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
        prefix = b"CUDA_VISIBLE_DEVICES="
        visible = next((v.removeprefix(prefix).decode() for v in variables if v.startswith(prefix)), None)
        found = listed(nvml.gpus(), visible)
        known = [gpu for _, gpu in found if gpu is not None]
        return found, host.described(known) if known else None

    def try_storage(self, storage: Storage, token: str) -> str | None:
        """Why this node cannot use it, if it cannot: it has to read the token there, and to write a file."""
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
        return nvml.read(uuids)


def _probe(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(_NodeProbe).options(num_cpus=0, scheduling_strategy=here).remote()


def _url(address: str | None) -> str | None:
    return f"http://{address}" if address else None
