"""This machine's CPUs, memory and GPUs as the planner's nodes; limits of containers count."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from raygpu.devices import control_group, nvml
from raygpu.devices.fitness import packing_refusal
from raygpu.devices.nvml import GIB, Gpu
from raygpu.devices.rgu import rgu
from raygpu.devices.slurm_allocation import allocation
from raygpu.errors import BadInput
from raygpu.planning.gpu_shares import Node


def node(num_gpus: int) -> Node:
    """Return this machine as one node for the planner, without GPU types; one simulated GPU where it has none."""
    return Node(num_cpus=num_cpus(), num_gpus=max(1, num_gpus), memory_gib=available_memory_gib())


def nodes(gpus: Sequence[Gpu], *, apart: bool = True) -> list[Node]:
    """Return this machine as nodes for the planner: one for each GPU type, with its part of the CPUs and memory.

    apart: whether GPU types are kept apart; otherwise all GPUs make one node, sized by the smallest. Without GPUs, one
    node with one simulated GPU.
    """
    machine = node(len(gpus))
    if not gpus:
        return [machine]
    return [
        replace(
            described(part),
            num_cpus=machine.num_cpus if len(part) == len(gpus) else machine.num_cpus * len(part) / len(gpus),
            num_gpus=len(part),
            memory_gib=machine.memory_gib * len(part) / len(gpus),
        )
        for part in (types(gpus) if apart else [list(gpus)])
    ]


def types(gpus: Sequence[Gpu]) -> list[list[Gpu]]:
    """Group GPUs by type, in the order in which each type occurs first."""
    gpus_by_type: dict[str, list[Gpu]] = {}
    for gpu in gpus:
        gpus_by_type.setdefault(described([gpu]).device_type, []).append(gpu)
    return list(gpus_by_type.values())


def computing(gpus: Sequence[Gpu]) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs on which processes may compute, and one line for each GPU left out.

    Raises BadInput if there are GPUs and all of them are in compute mode prohibited.
    """
    faults = {gpu.uuid: str(packing_refusal(gpu)) for gpu in gpus if gpu.compute_mode == "prohibited"}
    usable_gpus = [gpu for gpu in gpus if gpu.uuid not in faults]
    if gpus and not usable_gpus:
        raise BadInput(list(faults.values()))
    return usable_gpus, [f"left out: {fault}" for fault in faults.values()]


def described(gpus: Sequence[Gpu]) -> Node:
    """Return a node with the facts that hold for every one of its GPUs, without CPUs and host memory.

    gpus: at least one. Memory, RGU and compute capability are the minimum over the GPUs.
    """
    worth = [rgu(gpu.name, gpu.memory_gib) for gpu in gpus]
    free = [memory.free_gib for gpu in gpus if (memory := nvml.memory(gpu.uuid)) is not None]
    refusals = [refusal for gpu in gpus if (refusal := packing_refusal(gpu)) is not None]
    return Node(
        num_cpus=0,
        num_gpus=len(gpus),
        memory_gib=0.0,
        device=" + ".join(dict.fromkeys(gpu.name for gpu in gpus)),
        device_gib=min(gpu.memory_gib for gpu in gpus),
        free_gib=min(free, default=None),
        rgu=None if None in worth else min(value for value in worth if value is not None),
        capability=min((gpu.capability for gpu in gpus if gpu.capability is not None), default=None),
        refusal=refusals[0] if refusals else None,
    )


def num_cpus() -> int:
    """Return the number of CPUs for this process, by its affinity, its Slurm job and its control groups' quota."""
    affinity = len(os.sched_getaffinity(0))
    allowed = min(affinity, allocation().num_cpus or affinity)
    quota = control_group.cpu_quota()
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def cpu_name() -> str:
    """Return the CPU's model name, or the machine's architecture where Linux gives none."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, model = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return model.strip()
    return platform.machine()


def available_memory_gib() -> float:
    """Return the available host memory in GiB, bounded by the Slurm job's, and by the rest of the control groups'
    limits."""
    available = psutil.virtual_memory().available / GIB
    available = min(available, allocation().memory_gib or available)
    rest = control_group.available_bytes()
    return available if rest is None else min(available, rest / GIB)
