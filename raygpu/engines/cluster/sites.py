"""Describe the nodes and devices that trainings run on for the planner: this machine, or a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.planning.estimates import Site
from raygpu.planning.gpu_shares import Node
from raygpu.records.device import SIMULATED

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.cluster.cluster import Cluster


def local_site(gpus: Sequence[Gpu], nodes: Sequence[Node]) -> Site:
    """Return this machine as a site. gpus: empty for a simulated GPU. nodes: this machine's nodes, one or more."""
    if not gpus:
        return Site(nodes, [SIMULATED], host.cpu_name(), None, nodes[0].num_cpus)
    num_cpus = nodes[0].num_cpus if len(nodes) == 1 else host.num_cpus()
    return Site(nodes, [gpu.name for gpu in gpus], gpus[0].name, gpus[0].memory_gib, num_cpus)


def cluster_site(cluster: Cluster) -> Site:
    """Return the nodes of a running Ray as a site; the first device stands for all in device name and memory."""
    first, names = cluster.devices[0], [device.name for device in cluster.devices]
    device = first.name if first.uuid is not None else host.cpu_name()
    num_cpus = host.num_cpus() if cluster.local and len(cluster.nodes) > 1 else cluster.nodes[0].num_cpus
    return Site(cluster.nodes, names, device, first.memory_gib, num_cpus, cluster.local)
