"""Describe the nodes and devices that trainings run on for the planner: this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.planning.estimates import Hardware
from raygpu.planning.gpu_shares import Node
from raygpu.records.device import SIMULATED

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster


def local_hardware(gpus: Sequence[Gpu], nodes: Sequence[Node]) -> Hardware:
    """Return the hardware of this machine. gpus: empty for a simulated GPU. nodes: this machine's, one or more."""
    if not gpus:
        return Hardware(nodes, [SIMULATED], host.cpu_name(), None, nodes[0].num_cpus)
    num_cpus = nodes[0].num_cpus if len(nodes) == 1 else host.num_cpus()
    first = gpus[0]
    return Hardware(nodes, [gpu.name for gpu in gpus], first.name, first.memory_gib, num_cpus, first.uuid)


def cluster_hardware(cluster: Cluster) -> Hardware:
    """Return the hardware of a running Ray: the first device stands for all in device name and memory."""
    first, names = cluster.devices[0], [device.name for device in cluster.devices]
    device = first.name if first.uuid is not None else host.cpu_name()
    num_cpus = host.num_cpus() if cluster.local and len(cluster.nodes) > 1 else cluster.nodes[0].num_cpus
    uuid = first.uuid if cluster.local else None
    return Hardware(cluster.nodes, names, device, first.memory_gib, num_cpus, uuid)
