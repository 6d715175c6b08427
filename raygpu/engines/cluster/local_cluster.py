"""Start a Ray for one run, on this machine and on loopback alone."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray

from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.devices.slurm_allocation import allocation
from raygpu.engines.cluster import orphan_processes, ray_environment
from raygpu.engines.cluster.cluster import Cluster, device, end_local, shutdown
from raygpu.engines.cluster.dashboard import Dashboard
from raygpu.engines.cluster.job_name import named_job
from raygpu.engines.cluster.local_nodes import ExtraNode, wait_for
from raygpu.engines.cluster.preload import Preload
from raygpu.engines.cluster.ray_files import folders, keep_token_private
from raygpu.engines.cluster.ray_private_api import log_monitor, own_process_groups, without_waits
from raygpu.errors import RaygpuError, one_line
from raygpu.planning.gpu_shares import Node
from raygpu.records.device import SIMULATED, Device
from raygpu.storage import JOB_VARIABLE

HIDDEN = "-1"
"""Value of CUDA_VISIBLE_DEVICES that hides all GPUs; Ray counts it as one GPU of that name."""
TYPE_RESOURCE = "raygpu:"
"""Prefix of the Ray resource for a GPU type of this machine: Ray takes two memory sizes of a GPU for one type."""


def start_local(gpus: Sequence[Gpu], job: str = "", *, apart: bool = True, preload: Preload | None = None) -> Cluster:
    """Start a Ray on loopback with these GPUs, or with one simulated GPU if there are none.

    job: name on Ray's dashboard. apart: whether each GPU type gets a Ray node of its own, since Ray knows only the type
    of a node's first GPU. preload: imports of the workers that start in advance, of a Ray with one node; by default
    Ray starts one for each CPU, without imports. Raises RaygpuError if Ray does not start.
    """
    nodes = host.nodes(gpus, apart=apart)
    with orphan_processes.marked():
        if len(nodes) > 1:
            return _start_apart(nodes, host.types(gpus), gpus, job)
        return _start_together(nodes[0], gpus, job, preload)


def _start_together(node: Node, gpus: Sequence[Gpu], job: str, preload: Preload | None) -> Cluster:
    """Start a Ray of one node with these GPUs."""
    # By UUID: the order that CUDA counts in may differ from NVML's.
    visible = ray_environment.variable("CUDA_VISIBLE_DEVICES", ",".join(gpu.uuid for gpu in gpus) or HIDDEN)
    with visible, preload.variables() if preload is not None else nullcontext():
        _init_local(node, job, prestarted=preload.workers if preload is not None else None)
    node_id = ray.get_runtime_context().get_node_id()
    devices = [device(i, node_id, gpu.uuid, gpu) for i, gpu in enumerate(gpus)]
    began = Cluster(devices or [Device(0, node_id, HIDDEN, SIMULATED)], [node], Dashboard.starting(), local=True)
    began.log_monitor = log_monitor()
    return began


def _start_apart(nodes: list[Node], types: Sequence[Sequence[Gpu]], gpus: Sequence[Gpu], job: str) -> Cluster:
    """Start a Ray with one node for each GPU type; the first type's node is the head."""
    resources = [type_resource(node.device_type) for node in nodes]
    visible = [",".join(gpu.uuid for gpu in of) for of in types]
    extra: list[ExtraNode] = []
    try:
        with ray_environment.variable("CUDA_VISIBLE_DEVICES", visible[0]):
            context = _init_local(nodes[0], job, {resources[0]: 1})
        for node, shown, resource in list(zip(nodes, visible, resources, strict=True))[1:]:
            address, logs = context.address_info["gcs_address"], Path(context.address_info["session_dir"]) / "logs"
            num_cpus = math.ceil(node.num_cpus)
            extra.append(ExtraNode(address, num_cpus, node.num_gpus, shown, resource, _plain(node.device_type), logs))
        joined = wait_for(extra)
    except BaseException:
        end_local(extra)
        raise
    node_ids = [ray.get_runtime_context().get_node_id(), *(joined[_plain(node.device_type)] for node in nodes[1:])]
    by_uuid = {gpu.uuid: node_id for of, node_id in zip(types, node_ids, strict=True) for gpu in of}
    devices = [device(i, by_uuid[gpu.uuid], gpu.uuid, gpu) for i, gpu in enumerate(gpus)]
    began = Cluster(devices, nodes, Dashboard.starting(), local=True, _resources=list(resources), _extra=extra)
    began.log_monitor = log_monitor()
    return began


def type_resource(device_type: str) -> str:
    """Return the name of the Ray resource for a GPU type of this machine."""
    return TYPE_RESOURCE + _plain(device_type)


def _plain(device_type: str) -> str:
    """Reduce a name to letters, digits and hyphens: Ray passes lists of resources separated by commas."""
    return re.sub(r"[^0-9A-Za-z]+", "-", device_type)


def _init_local(
    node: Node, job: str, resources: Mapping[str, float] | None = None, *, prestarted: int | None = None
) -> Any:
    """Call `ray.init`, and once more if the first start ran into Ray's fixed limit of 30 s on a cold, busy machine.

    prestarted: number of workers that start in advance; None for Ray's own.
    """
    # In a job of another cluster: the files sent with that job are no part of this Ray's.
    os.environ.pop(JOB_VARIABLE, None)
    keep_token_private()
    folder, dashboard_files = folders()
    for attempt in (1, 2):
        try:
            with own_process_groups(dashboard_files, prestarted), without_waits():
                return ray.init(
                    address="local",
                    num_cpus=math.ceil(node.num_cpus),  # the plan keeps to the exact part
                    num_gpus=node.num_gpus,
                    object_store_memory=allocation().object_store_bytes,  # None for Ray's own choice
                    resources=dict(resources or {}),
                    job_config=named_job(job),
                    dashboard_host="127.0.0.1",
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=folder,
                )
        except Exception as error:  # Ray raises a bare Exception for it
            shutdown()
            if attempt == 2 or "timed out" not in str(error):
                raise RaygpuError(f"Ray did not start: {one_line(error)}") from error
    raise AssertionError("not reached")
