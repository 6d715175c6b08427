"""The placement of a production training's workers on GPUs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from raygpu.config import TrainConfig
from raygpu.errors import BadInput
from raygpu.planning.gpu_shares import Node, floor_to_step

WORKER_GIB = 0.3
"""Host memory of a worker that has imported its framework, in GiB."""


@dataclass(frozen=True, slots=True)
class WorkerDevices:
    """Number of workers, resources of each worker, and the way in which they exchange gradients."""

    workers: int
    devices_per_worker: int
    """Number of devices of a worker."""
    per_gpu: int
    """Number of workers on a GPU."""
    gpus: float
    """GPUs that Ray reserves for a worker; a fraction if workers share a GPU."""
    cpus: float
    backend: str
    """Torch backend or TensorFlow strategy that sums the workers' gradients; empty for a function."""
    shared: bool
    """Whether workers share a GPU, or the GPU is simulated."""
    simulated: bool
    """Whether the GPU is simulated."""

    @property
    def ranks(self) -> int:
        """Return the number of ranks: the devices of all workers."""
        return self.workers * self.devices_per_worker

    def line(self, devices: Sequence[str]) -> str:
        """Return the placement as a line for the user. devices: the name of each device of the cluster."""
        names = ", ".join(dict.fromkeys(devices))
        place = f"{len(devices)} x {names}" if len(devices) > 1 else names
        shared = f", {self.per_gpu} on each" if self.per_gpu > 1 else ""
        together = f", {self.backend}" if self.ranks > 1 else ""
        workers = "1 worker" if self.workers == 1 else f"{self.workers} workers"
        each = f" of {self.devices_per_worker} devices" if self.devices_per_worker > 1 else ""
        cpus = f"{self.cpus:g} CPU{'' if self.cpus == 1 else 's'} each"
        return f"{workers}{each} on {place}{shared}{together}, {cpus}"


def place_workers(nodes: Sequence[Node], config: TrainConfig, framework: str, *, simulated: bool) -> WorkerDevices:
    """Place a training's workers evenly on the nodes' GPUs; workers that share a GPU take turns.

    framework: torch, keras, or function, which has one worker. simulated: whether the nodes' GPUs are simulated.
    Raises BadInput if the GPUs are not enough for the devices of each worker.
    """
    workers = 1 if framework == "function" else config.workers
    each = config.devices_per_worker
    num_gpus = _num_gpus(nodes, config.cluster.most_gpus)
    if each == 1:
        count = math.ceil(num_gpus) if workers == "all" else workers
        per_gpu = math.ceil(Fraction(count) / num_gpus)
        gpus = floor_to_step(Fraction(1, per_gpu))
    else:
        per_gpu = 1
        count, gpus = _with_several_devices(nodes, workers, each, num_gpus, simulated=simulated)
    memory_gib = sum(node.memory_gib for node in nodes)
    if count * WORKER_GIB > memory_gib:
        raise BadInput(
            f"workers: read {workers}; each takes at least {WORKER_GIB:g} GiB of host memory, and"
            f" {memory_gib:.1f} GiB are free"
        )
    if num_gpus < sum(node.num_gpus for node in nodes):  # other commands want the CPUs beside the other GPUs
        per_node = [node.num_gpus / Fraction(gpus).limit_denominator(10_000) for node in nodes]
    else:
        per_node = [
            Fraction(min(count, max(1, node.num_gpus * per_gpu // (1 if simulated else each)))) for node in nodes
        ]
    cpus = min(
        floor_to_step(Fraction(node.num_cpus).limit_denominator(10_000) / most)
        for node, most in zip(nodes, per_node, strict=True)
    )
    shares = simulated or per_gpu > 1
    backend = _backend(framework, count, shares=shares)
    return WorkerDevices(count, each, per_gpu, gpus, cpus, backend, shares, simulated)


def _num_gpus(nodes: Sequence[Node], most_gpus: Fraction | None) -> Fraction | int:
    """Return the number of GPUs that the training may use: a fraction of one, or a whole number."""
    num_gpus: Fraction | int = sum(node.num_gpus for node in nodes)
    if most_gpus is None or most_gpus >= num_gpus:
        return num_gpus
    return most_gpus if most_gpus < 1 else math.floor(most_gpus)


def _with_several_devices(
    nodes: Sequence[Node], workers: int | Literal["all"], each: int, num_gpus: Fraction | int, *, simulated: bool
) -> tuple[int, float]:
    """Return the number of workers with `each` devices, all of one node, and the GPUs that Ray reserves for a worker.
    Raises BadInput if the nodes have not enough."""
    if simulated:
        if workers not in ("all", 1):
            raise BadInput(f"workers: read {workers}; without GPUs one worker may have {each} devices, not several")
        return 1, float(min(num_gpus, 1))
    room = int(min(sum(node.num_gpus // each for node in nodes), num_gpus // each))
    count = room if workers == "all" else workers
    if not room or count > room:
        raise BadInput(
            f"devices_per_worker: read {each}; the nodes have {', '.join(str(n.num_gpus) for n in nodes)}"
            f" GPUs, enough for {room} such workers"
        )
    return count, float(each)


def _backend(framework: str, count: int, *, shares: bool) -> str:
    """Return what sums the gradients of so many workers. shares: whether they share a GPU, which NCCL refuses."""
    if framework == "torch":
        return "gloo" if shares else "nccl"
    if framework == "keras":
        return "MirroredStrategy" if count == 1 else f"MultiWorkerMirroredStrategy{' by RING' if shares else ''}"
    return ""
