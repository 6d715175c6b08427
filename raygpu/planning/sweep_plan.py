"""The plan of a sweep: which trials are fused, how the others are packed, and why."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from raygpu.config import SweepConfig
from raygpu.config.sections import GpuSection, Way
from raygpu.errors import BadInput
from raygpu.planning import allocation, cost_model
from raygpu.planning.cost_model import FreeMemory, Option
from raygpu.planning.estimates import Estimates, Hardware
from raygpu.planning.gpu_room import needs_of_sweep
from raygpu.planning.gpu_shares import ArrayPlan, Choice, Node, Plan, Share, by_type, plan, snap
from raygpu.planning.training_need import Need
from raygpu.search.generations import Generations
from raygpu.search.signature import Group, Signature

FEWEST_MEMBERS = 8
"""Members of an array that a time budget makes no narrower."""
LEARNS_MORE = 1.5
"""Ratio of speeds from which arrays are taken for a search that draws each trial by all results so far without them. In
generations of eight, `tpe` is 1.8 times as far from the best score after 64 trials (experiments/benchmarks,
`generation_width`)."""
FASTER_ALONE = "packed processes are predicted to be faster"
WHOLE_GPU = "the process of several trials has a GPU for itself"
"""Reason of the share that fused and split mode have by default."""
Sharing = Literal["fused", "split"]
"""Way in which several trials share one process: as one array of torch models, or on TensorFlow's logical devices."""
Mode = Literal["process", "fused", "split"]


def make_plan(
    nodes: Sequence[Node],
    config: SweepConfig,
    num_trials: int,
    choices: Mapping[str, Choice] | None = None,
    *,
    mps: bool = False,
) -> Plan:
    """Plan process mode for these nodes. Raises BadInput.

    choices: trials at once on each type of device, if measured. mps: whether trials run under MPS.
    """
    fraction = config.gpu.fraction
    if choices is None:
        if fraction == "auto":
            choices = allocation.automatic_share(nodes)
        else:
            choices = allocation.requested_share(nodes, fraction, {})
    return _plan(nodes, config, allocation.limit_by_device(nodes, choices, mps=mps), num_trials)


def make_fused_plan(
    nodes: Sequence[Node],
    config: SweepConfig,
    num_trials: int,
    choices: Mapping[str, Choice] | None = None,
    *,
    mps: bool = False,
) -> ArrayPlan:
    """Plan fused mode for these nodes: by default, each array has a GPU for itself. Raises BadInput."""
    if config.gpu.fraction == "auto":
        shares = dict.fromkeys(by_type(nodes), Choice(Share(1), WHOLE_GPU))
    else:
        shares = allocation.requested_share(nodes, config.gpu.fraction, {})
    arrays = allocation.limit_by_device(nodes, shares, mps=mps)
    return ArrayPlan(_plan(nodes, config, arrays, num_trials), make_plan(nodes, config, num_trials, choices, mps=mps))


def _plan(nodes: Sequence[Node], config: SweepConfig, choices: Mapping[str, Choice], num_trials: int) -> Plan:
    most = config.cluster.most_gpus
    if config.gpu.fraction == "auto":
        choices = allocation.limit_by_reservation(choices, most)
    try:
        return plan(nodes, choices, num_trials, most)
    except ValueError as error:
        raise BadInput(f"gpu.fraction: read {config.gpu.fraction}; {error}") from error


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan of a sweep, and the estimates behind it."""

    plan: Plan | ArrayPlan
    groups: Sequence[Group]
    """All trials by signature; each that is not fused has its reason."""
    estimates: Estimates
    options: Sequence[Option]
    """Ways to run the sweep with their predicted times, the best first; empty where nothing was measured."""
    alone: Mapping[Signature, str]
    """Signatures that could be fused and are faster alone, each with the reason."""
    mps: bool
    """Whether packed processes run under CUDA MPS, if available."""

    @property
    def mode(self) -> Mode:
        """The `mode` of `summary.json`."""
        if isinstance(self.plan, Plan):
            return "process"
        return "split" if self.plan.is_split else "fused"

    @property
    def predicted(self) -> dict[str, Any]:
        """The `predicted` of `summary.json`: seconds by way, and which one was taken; empty without measurements."""
        if not self.options:
            return {}
        probe_s = self.estimates.probe_s
        return {
            "source": self.estimates.source,
            "probe_s": None if probe_s is None else round(probe_s, 2),
            "chosen": self.options[0].name,
            "wall_s": {option.name: round(option.wall_s, 2) for option in self.options},
            "off_s": {option.name: round(option.off_s, 2) for option in self.options},
            "memory_gib": {
                option.name: None if option.gib is None else round(option.gib, 2) for option in self.options
            },
        }

    def alone_samples_per_s(self, device: str) -> float | None:
        """Return the measured throughput of one training at a time on this type of device, in samples/s; None if it was
        not measured there. It is that of the largest group of trials."""
        profile = self.estimates.by_device.get(device) if self.estimates.types else self.estimates.reference
        if profile is None or profile.unit != "samples":
            return None
        return next((point.samples_per_s for point in profile.of("process") if point.n == 1), None)

    def needs(self) -> dict[tuple[str, bool], Need]:
        """Return what one more training takes, by device type and by whether it is one of an array."""
        parts = self.plan.parts if isinstance(self.plan, Plan) else (*self.plan.arrays.parts, *self.plan.alone.parts)
        devices = list(dict.fromkeys(part.device for part in parts))
        together: Way = "split" if self.mode == "split" else "fused"
        return needs_of_sweep(self.estimates, devices, "mps" if self.mps else "process", together)

    def settled(self, gpu: GpuSection) -> dict[str, Any]:
        """Return `[gpu]` with the choices in place of auto: a resumed sweep goes on as it began."""
        chosen: dict[str, Any] = {"mode": self.mode, "mps": "on" if self.mps else "off"}
        if isinstance(self.plan, Plan):
            if len(self.plan.parts) == 1:  # of several types of GPU, each has its own
                chosen["fraction"] = self.plan.parts[0].share.fraction
        elif self.plan.is_split:
            chosen["width"] = self.plan.members
        return gpu.model_dump() | chosen


def decide(
    hardware: Hardware,
    config: SweepConfig,
    num_trials: int,
    groups: Sequence[Group],
    sharing: Sharing | None,
    estimates: Estimates,
) -> Decision:
    """Plan a sweep for this hardware. Raises BadInput.

    sharing: way in which several trials can share one process; None if they cannot.
    """
    options = _options(hardware, config, groups, estimates)
    best = options[0] if options else None
    mps = config.gpu.mps == "on" or (config.gpu.mps == "auto" and best is not None and best.way == "mps")
    if sharing == "split" and (members := _members(config, hardware.nodes, best)) is not None:
        split = replace(make_fused_plan(hardware.nodes, config, num_trials), members=members, is_split=True)
        return Decision(split, groups, estimates, options, {}, mps=False)
    choices = _choices(hardware, config, groups, estimates, best)
    in_arrays = estimates.prefers_arrays if best is None else any(best.fused)
    if sharing == "fused" and (config.gpu.mode == "fused" or in_arrays):
        alone: dict[Signature, str] = {}
        if config.gpu.mode == "auto" and best is not None:
            faster_alone = [group for group, fused in zip(groups, best.fused, strict=True) if not fused]
            alone = dict.fromkeys((group.signature.without_folds for group in faster_alone), FASTER_ALONE)
            groups = [
                replace(group, reason=group.reason or alone.get(group.signature.without_folds)) for group in groups
            ]
        both = make_fused_plan(hardware.nodes, config, num_trials, choices, mps=mps)
        sizes = [len(group.trials) for group, fused in zip(groups, best.fused, strict=True) if fused] if best else []
        both = replace(both, members=_members_in_time(config, num_trials, best, sizes))
        return Decision(both, groups, estimates, options, alone, mps and _shared(both.alone))
    packed = make_plan(hardware.nodes, config, num_trials, choices, mps=mps)
    return Decision(packed, groups, estimates, options, {}, mps and _shared(packed))


def _options(hardware: Hardware, config: SweepConfig, groups: Sequence[Group], estimates: Estimates) -> list[Option]:
    """Return the ways to run the sweep, the best first; only those of the requested mode, if there are any."""
    if estimates.reference is None:
        return []
    parts = estimates.parts(groups, config)
    alike = [node for node in hardware.nodes if node.device == hardware.device] or list(hardware.nodes)
    ways = [way for way in cost_model.PACKED if way != ("mps" if config.gpu.mps == "off" else "")]
    if config.gpu.mps == "on" and max(parts, key=lambda part: part.size.trials).profile.measured("mps"):
        ways = ["mps"]
    asked = None if config.gpu.fraction == "auto" else snap(config.gpu.fraction).trials_per_gpu
    options = cost_model.options(
        parts, FreeMemory.of(alike, _least_free_gib(alike)), _num_gpus(hardware, config), ways, asked
    )
    return best_first([option for option in options if _asked_for(option, config.gpu.mode)] or options, config)


def best_first(options: Sequence[Option], config: SweepConfig) -> list[Option]:
    """Return the options by their predicted time, and by what a search learns in them."""
    ratio = generations_ratio(config)
    return sorted(options, key=lambda option: option.wall_s * (ratio if option.is_in_generations else 1.0))


def generations_ratio(config: SweepConfig) -> float:
    """Return how many times as fast as trials alone arrays have to be: LEARNS_MORE for a search that would draw each
    trial alone by all results so far, 1 for any other."""
    return LEARNS_MORE if config.search.learns and Generations.of(config, in_arrays=False) is None else 1.0


def _choices(
    hardware: Hardware, config: SweepConfig, groups: Sequence[Group], estimates: Estimates, best: Option | None
) -> dict[str, Choice] | None:
    """Return the trials at once on each type of device; None if nothing was requested or measured."""
    if config.gpu.fraction != "auto":
        return allocation.requested_share(hardware.nodes, config.gpu.fraction, estimates.needs())
    if best is None:
        return None
    largest = max(estimates.parts(groups, config), key=lambda part: part.size.trials)
    by_device = {
        device: replace(largest, profile=estimates.on(device) or largest.profile) for device in by_type(hardware.nodes)
    }
    return allocation.measured_share(hardware.nodes, best, by_device, _num_gpus(hardware, config), hardware.device)


def _num_gpus(hardware: Hardware, config: SweepConfig) -> int:
    """Return the number of GPUs that the run may reserve."""
    num_gpus = sum(node.num_gpus for node in hardware.nodes)
    most = config.cluster.most_gpus
    return num_gpus if most is None else max(1, min(num_gpus, math.floor(most)))


def _members(config: SweepConfig, nodes: Sequence[Node], best: Option | None) -> int | None:
    """Return the number of logical devices to split a device into; None for no split."""
    if config.gpu.mode == "auto":
        return best.n if best is not None and best.way == "split" else None
    if config.gpu.width != "auto":
        return config.gpu.width
    if best is not None and best.way == "split":
        return best.n
    return min(choice.share.trials_per_gpu for choice in allocation.automatic_share(nodes).values())


def _members_in_time(config: SweepConfig, num_trials: int, best: Option | None, sizes: Sequence[int]) -> int | None:
    """Return the largest number of members of an array of which each group has two within the time budget; None for
    all trials. The budget ends arrays of the last group that are as wide as it allows before their first result.

    sizes: numbers of trials of the fused groups.
    """
    budget_s = config.time_budget_s
    if best is None or not any(best.fused) or config.population.interval is not None:
        return None
    if budget_s is None or best.wall_s <= budget_s:
        return None
    in_time = math.floor(num_trials * budget_s / best.wall_s)

    def in_two_arrays(members: int) -> int:
        """Return the number of trials in two arrays of each group."""
        return sum(min(2 * members, size) for size in sizes)

    return max(FEWEST_MEMBERS, bisect_right(range(1, in_time // 2 + 1), in_time, key=in_two_arrays))


def _shared(packed: Plan) -> bool:
    """Return whether trials share a GPU: MPS has no use for one alone."""
    return any(part.share.trials_per_gpu > 1 for part in packed.parts)


def _asked_for(option: Option, mode: str) -> bool:
    """Return whether an option is of the requested mode; auto takes every one."""
    if mode == "auto":
        return True
    if mode == "split":
        return option.way == "split"
    return any(option.fused) == (mode == "fused") and option.way != "split"


def _least_free_gib(nodes: Sequence[Node]) -> float | None:
    """Return the free memory of the GPU that has the least; None if unknown."""
    return min((node.free_gib for node in nodes if node.free_gib is not None), default=None)
