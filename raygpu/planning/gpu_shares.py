"""The number of trainings per GPU: arithmetic from fractions, processors and memory to a plan.

Workers import this, so it imports nothing that is slow to load.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

# Ray counts resources in steps of 1/10000: https://docs.ray.io/en/latest/ray-core/scheduling/resources.html
RAY_STEP = 10_000
AUTO_LIMIT = 8
AUTO_MEMORY_GIB = 1.5
MAX_MPS_CLIENTS = 48
"""Largest number of processes of one CUDA MPS server, from Volta on (60 from CUDA 13.1)."""


@dataclass(frozen=True, slots=True)
class Share:
    """The reservation of one trial: 1/trials_per_gpu of a GPU, or `gpus_per_trial` whole ones."""

    trials_per_gpu: int = 1
    gpus_per_trial: int = 1

    @property
    def part(self) -> Fraction:
        """GPUs per trial, exactly 1/N or a whole number."""
        return Fraction(self.gpus_per_trial, self.trials_per_gpu)

    @property
    def fraction(self) -> float:
        """GPUs per trial, as a float."""
        return float(self.part)

    @property
    def ray_gpus(self) -> float:
        """GPUs per trial, rounded down to Ray's step: N of them then fit one GPU (7 times a rounded 1/7 would not)."""
        return floor_to_step(self.part)

    def larger(self, num_failures: int) -> Share | None:
        """Return a larger share after that many out-of-memory failures: the next one, then twice as large; None beyond
        a GPU."""
        if self.trials_per_gpu == 1:
            return None
        return Share(self.trials_per_gpu - 1 if num_failures == 1 else self.trials_per_gpu // 2)

    def __str__(self) -> str:
        if self.gpus_per_trial > 1:
            return f"{self.gpus_per_trial} GPUs per trial"
        if self.trials_per_gpu == 1:
            return "1 per GPU, the whole of it"
        return f"{self.trials_per_gpu} per GPU, 1/{self.trials_per_gpu} each"


@dataclass(frozen=True, slots=True)
class Node:
    """A machine that trials can be placed on, or the part of one that has GPUs of one type."""

    num_cpus: float
    num_gpus: int
    memory_gib: float
    """Host memory that is free for trials."""
    device: str = ""
    """The name of its GPUs."""
    device_gib: float | None = None
    """Memory of each GPU; None of a simulated one."""
    free_gib: float | None = None
    """Free memory of the GPU that has the least; None if unknown."""
    rgu: float | None = None
    """Worth of one of its GPUs in Reference GPU Units; None if unknown."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability; None if unknown."""
    refusal: str | None = None
    """Reason why several processes cannot share one of its GPUs; None if they can."""

    @property
    def device_type(self) -> str:
        """Name for a person, the same for all GPUs on which a trial takes the same share."""
        size = f", {self.device_gib:.0f} GiB" if self.device_gib is not None else ""
        return f"{self.device}{size}{', one process at a time' if self.refusal else ''}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The share that each trial takes of the GPUs of one type, and why."""

    share: Share
    reason: str


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """The placement of trials on the GPUs of one type."""

    share: Share
    cpus_per_trial: float
    """CPUs of a trial, few enough that the GPU always limits the number of trials."""
    threads_per_trial: int
    slots: int
    """Trials that run at once."""
    reason: str
    device: str = ""
    """Device type."""
    num_gpus: int = 1
    device_gib: float | None = None

    def resized(self, share: Share) -> DevicePlan:
        """Return the part for a trial with another share; its CPUs are in proportion to the share."""
        cpus = floor_to_step(Fraction(self.cpus_per_trial).limit_denominator(RAY_STEP) * share.part / self.share.part)
        return replace(self, share=share, cpus_per_trial=cpus, threads_per_trial=max(1, math.floor(cpus)))

    def as_dict(self) -> dict[str, Any]:
        """Return the share and its reason for `summary.json`."""
        return {
            "fraction": round(self.share.fraction, 4),
            "trials_per_gpu": self.share.trials_per_gpu,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """The placement of the sweep's trials: on the GPUs of each type, the fastest first."""

    parts: tuple[DevicePlan, ...]
    slots: int
    """Trials that run at once."""
    most_gpus: Fraction | None = None
    """Largest number of GPUs that the trials may reserve at once; None for all."""

    def on(self, device: str) -> DevicePlan:
        """Return the part of a device type; the first part if the type is gone, as after a resume on another
        machine."""
        return next((part for part in self.parts if part.device == device), self.parts[0])

    def as_dict(self) -> dict[str, Any]:
        """Return the `plan` of `summary.json`; with several device types, a list of their parts."""
        if len(self.parts) == 1:
            return self.parts[0].as_dict()
        return {
            "devices": [
                {"device": part.device, "gpus": part.num_gpus, "slots": part.slots} | part.as_dict()
                for part in self.parts
            ]
        }


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """The placement of the sweep's arrays, and of the trials that are trained alone beside them."""

    arrays: Plan
    alone: Plan
    members: int | None = None
    """Largest number of members of an array, in split mode of its logical devices; None for all trials."""
    is_split: bool = False
    """Whether an array is a process in split mode."""

    def as_dict(self) -> dict[str, Any]:
        """Return the `plan` of `summary.json`."""
        return self.arrays.as_dict() | ({} if self.members is None else {"members": self.members})


def snap(fraction: float) -> Share:
    """Return the share for a fraction of a GPU: 1/N with N = floor(1/fraction), so nobody gets less than asked.

    0.18 -> 5 per GPU, 0.33 -> 3, 0.6 -> 1; a whole number above 1 -> that many GPUs per trial.
    """
    if fraction > 1:
        return Share(gpus_per_trial=round(fraction))
    # The margin keeps 1/0.1 and a third written as 0.333333333 at 10 and 3.
    return Share(trials_per_gpu=max(1, math.floor(1 / fraction + 1e-9)))


def floor_to_step(amount: Fraction) -> float:
    """Round an amount of a resource down to Ray's step of 1/10000."""
    return math.floor(amount * RAY_STEP) / RAY_STEP


def by_type(nodes: Sequence[Node]) -> dict[str, list[Node]]:
    """Return the nodes that have GPUs by device type, the fastest type first: by Reference GPU Units, then memory."""
    nodes_by_type: dict[str, list[Node]] = {}
    for node in sorted(nodes, key=lambda node: (-(node.rgu or 0.0), -(node.device_gib or 0.0))):
        if node.num_gpus:
            nodes_by_type.setdefault(node.device_type, []).append(node)
    return nodes_by_type


def auto_share(nodes: Sequence[Node]) -> Choice:
    """Return the plain rule's share, without measurements: as many per GPU as CPU cores and memory allow, at most 8.

    nodes: of one type.
    """
    bounds = {f"at most {AUTO_LIMIT}": AUTO_LIMIT}
    for node in nodes:
        cores = f"one per CPU core ({node.num_cpus:g} for {_gpus(node.num_gpus)})"
        memory = f"{AUTO_MEMORY_GIB:g} GiB of host memory each ({node.memory_gib:.1f} GiB for {_gpus(node.num_gpus)})"
        limits = {
            cores: node.num_cpus / node.num_gpus,
            memory: node.memory_gib / node.num_gpus / AUTO_MEMORY_GIB,
        }
        if node.free_gib is not None:
            limits[f"{AUTO_MEMORY_GIB:g} GiB of device memory each ({node.free_gib:.1f} GiB free)"] = (
                node.free_gib / AUTO_MEMORY_GIB
            )
        for bound, most in limits.items():
            bounds[bound] = min(max(1, math.floor(min(most, AUTO_LIMIT))), bounds.get(bound, AUTO_LIMIT))
    bound, count = min(bounds.items(), key=lambda item: item[1])
    return Choice(Share(trials_per_gpu=count), f"plain rule: {bound}")


def held_to(choice: Choice, most: int, reason: str) -> Choice:
    """Reduce a choice to at most `most` trials per GPU, with this reason."""
    if choice.share.trials_per_gpu <= most:
        return choice
    return Choice(Share(trials_per_gpu=max(1, most)), reason)


def plan(
    nodes: Sequence[Node], choices: Mapping[str, Choice], num_trials: int, most_gpus: Fraction | None = None
) -> Plan:
    """Place trials on these nodes. choices: by type; a type without one is not used.

    most_gpus: largest number of GPUs to reserve at once. Raises ValueError if no node can hold a trial.
    """
    gpu_nodes = {device: of for device, of in by_type(nodes).items() if device in choices}
    if not gpu_nodes:
        raise ValueError("no node has a GPU")
    parts = [part for device, of in gpu_nodes.items() if (part := _part(of, choices[device], num_trials)) is not None]
    if not parts:
        wanted = next(iter(choices.values())).share.gpus_per_trial
        most = max(node.num_gpus for of in gpu_nodes.values() for node in of)
        raise ValueError(f"{wanted} GPUs per trial, but no node has more than {most}")
    if most_gpus is not None:
        parts = _held_below(most_gpus, parts)
    return Plan(tuple(parts), min(sum(part.slots for part in parts), num_trials), most_gpus)


def _held_below(most_gpus: Fraction, parts: Sequence[DevicePlan]) -> list[DevicePlan]:
    """Reduce the slots until all parts together reserve at most `most_gpus`; the fastest type comes first."""
    device_plans, gpu_budget = [], most_gpus
    for part in parts:
        slots = min(part.slots, gpu_budget // part.share.part)
        gpu_budget -= slots * part.share.part
        if slots:
            device_plans.append(replace(part, slots=slots))
    if not device_plans:
        least = min(part.share.part for part in parts)
        raise ValueError(f"a trial takes {float(least):g} of a GPU, and cluster.max_gpus allows {float(most_gpus):g}")
    return device_plans


def _part(nodes: Sequence[Node], choice: Choice, num_trials: int) -> DevicePlan | None:
    """Return the part of nodes of one type; None if none of them can hold a trial."""
    slots = [_slots(node, choice.share) for node in nodes]
    if not sum(slots):
        return None
    cpus = min(
        floor_to_step(Fraction(node.num_cpus).limit_denominator(RAY_STEP) / count)
        for node, count in zip(nodes, slots, strict=True)
        if count
    )
    return DevicePlan(
        choice.share,
        cpus,
        max(1, math.floor(cpus)),
        min(sum(slots), num_trials),
        choice.reason,
        nodes[0].device_type,
        sum(node.num_gpus for node in nodes),
        min((node.device_gib for node in nodes if node.device_gib is not None), default=None),
    )


def _slots(node: Node, share: Share) -> int:
    return node.num_gpus // share.gpus_per_trial * share.trials_per_gpu


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
