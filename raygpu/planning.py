"""The plan of a sweep: which trials are fused, how the others are packed, and why."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raygpu import choosing, placing
from raygpu.choosing import Option, Room
from raygpu.config import SweepConfig
from raygpu.devices.fitness import too_old
from raygpu.errors import BadInput
from raygpu.experiment import Source, Splits
from raygpu.fusing import Fuser, Grouper, Together
from raygpu.grouping import Group, Signature
from raygpu.measuring import Estimates, Site
from raygpu.packing import Choice, FusedPlan, Node, Plan, by_type, plan, snap
from raygpu.search import Drawn, Proposer
from raygpu.sections import GpuSection
from raygpu.space import Space, random_trials
from raygpu.subjects import signature
from raygpu.views.plans import fused_lines, mps_lines, plan_lines, split_lines

NEEDS = {
    "fused": "only a TorchExperiment can be fused",
    "split": "only a KerasExperiment runs on TensorFlow's logical devices",
}
FASTER_ALONE = "packed processes are predicted to be faster"


def make_plan(
    nodes: Sequence[Node],
    config: SweepConfig,
    num_trials: int,
    choices: Mapping[str, Choice] | None = None,
    *,
    mps: bool = False,
) -> Plan:
    """The plan of process mode for these nodes. Raises BadInput.

    choices: how many at once on each type of device, where it was measured. mps: whether trials run under MPS.
    """
    fraction = config.gpu.fraction
    if choices is None:
        choices = placing.automatic(nodes) if fraction == "auto" else placing.asked(nodes, fraction, {})
    return _plan(nodes, config, placing.permitted(nodes, choices, mps=mps), num_trials)


def make_fused_plan(
    nodes: Sequence[Node],
    config: SweepConfig,
    num_trials: int,
    choices: Mapping[str, Choice] | None = None,
    *,
    mps: bool = False,
) -> FusedPlan:
    """The plan of fused mode for these nodes: by default, one array has a GPU for itself. Raises BadInput."""
    fraction = 1.0 if config.gpu.fraction == "auto" else config.gpu.fraction
    arrays = placing.permitted(nodes, placing.asked(nodes, fraction, {}), mps=mps)
    return FusedPlan(_plan(nodes, config, arrays, num_trials), make_plan(nodes, config, num_trials, choices, mps=mps))


def _plan(nodes: Sequence[Node], config: SweepConfig, choices: Mapping[str, Choice], num_trials: int) -> Plan:
    most = config.cluster.most_gpus
    if config.gpu.fraction == "auto":
        choices = placing.within(choices, most)
    try:
        return plan(nodes, choices, num_trials, most)
    except ValueError as error:
        raise BadInput(f"gpu.fraction: read {config.gpu.fraction}; {error}") from error


@dataclass(frozen=True, slots=True)
class Grouped:
    """The findings about a sweep's trials before it is planned."""

    groups: list[Group]
    """Groups of all trials; where the search draws them as it goes, of such as it may draw."""
    fuser: Grouper | None
    """None where nothing can be fused or split."""
    drawn: bool
    """Whether the trials are known already."""
    architectures: tuple[str, ...] | None = None
    """Architectures that the framework is built for, as torch.cuda.get_arch_list() has them; None if not known."""


def grouped(
    config: SweepConfig, space: Space, proposer: Proposer, source: Source, code: Any, splits: Splits | None
) -> Grouped:
    """The trials in groups of one signature; in fused and auto mode, each group has been dry-run."""
    drawn = isinstance(proposer, Drawn)
    trials = (
        proposer.trials if isinstance(proposer, Drawn) else random_trials(space, config.search.generation, config.seed)
    )
    if config.gpu.mode in ("process", "split") or splits is None or source.kind != "torch":
        try:
            common = signature(source, code, splits, trials[0])
        except BadInput:  # its trials will show it, each alone
            common = Signature(())
        split = source.kind == "keras" and config.gpu.mode in ("auto", "split")
        together = Together() if split else None
        built_for = architectures() if source.kind == "torch" else None
        return Grouped([Group(common, list(trials), "not fused")], together, drawn, built_for)
    fuser = Fuser(code, splits, config.gpu.precision, source.folder)
    return Grouped(fuser.groups(trials), fuser, drawn, architectures())


def architectures() -> tuple[str, ...] | None:
    """Return the architectures that the installed torch is built for: none without CUDA; None where not told."""
    import torch

    if torch.version.cuda is None:
        return ()
    return tuple(torch.cuda.get_arch_list()) or None


def usable(nodes: Sequence[Node], built_for: Sequence[str] | None) -> tuple[list[Node], list[str]]:
    """The nodes whose GPUs the installed torch has code for, and a line for each type that is left out.

    A torch without CUDA trains on the CPU, wherever it is. Raises BadInput where none is left.
    """
    if built_for == ():
        on_cpu = {node.device: node.capability for node in nodes if node.capability is not None}
        return list(nodes), [
            f"plan: trials train on the CPU: {too_old(name, found, ())}" for name, found in on_cpu.items()
        ]
    faults = {
        node.device_type: fault
        for node in nodes
        if built_for is not None
        and node.capability is not None
        and (fault := too_old(node.device, node.capability, built_for)) is not None
    }
    left = [node for node in nodes if node.device_type not in faults]
    if not left:
        raise BadInput(list(faults.values()))
    return left, [f"plan: left out: {fault}" for fault in faults.values()]


@dataclass(frozen=True, slots=True)
class Decision:
    """The plan that runs, and its predicted seconds."""

    plan: Plan | FusedPlan
    lines: list[str]
    predicted: dict[str, Any]
    """The `predicted` of `summary.json`: seconds by way, and which one was taken; empty where nothing was measured."""
    mps: bool
    """Whether packed processes run under CUDA MPS, where it is to be had."""

    @property
    def mode(self) -> str:
        """The `mode` of `summary.json`."""
        if isinstance(self.plan, Plan):
            return "process"
        return "fused" if self.plan.members is None else "split"

    def settled(self, gpu: GpuSection) -> dict[str, Any]:
        """`[gpu]` with what was chosen in place of auto: a sweep that is resumed goes on as it began."""
        chosen: dict[str, Any] = {"mode": self.mode, "mps": "on" if self.mps else "off"}
        if isinstance(self.plan, Plan):
            if len(self.plan.parts) == 1:  # of several types of GPU, each has its own
                chosen["fraction"] = self.plan.parts[0].share.fraction
        elif self.plan.members is not None:
            chosen["width"] = self.plan.members
        return gpu.model_dump() | chosen


def decide(site: Site, config: SweepConfig, num_trials: int, found: Grouped, estimates: Estimates) -> Decision:
    """The plan for this place. Raises BadInput."""
    nodes, left_out = usable(site.nodes, found.architectures)
    options: list[Option] = []
    parts: list[choosing.Part] = []
    num_gpus = sum(node.num_gpus for node in nodes)
    if (most := config.cluster.most_gpus) is not None:
        num_gpus = max(1, min(num_gpus, math.floor(most)))
    if estimates.reference is not None:
        asked = None if config.gpu.fraction == "auto" else snap(config.gpu.fraction).trials_per_gpu
        parts = estimates.parts(found.groups, config)
        alike = [node for node in nodes if node.device == site.device] or nodes
        ways = [way for way in choosing.PACKED if way != ("mps" if config.gpu.mps == "off" else "")]
        if config.gpu.mps == "on" and any(part.profile.of("mps") for part in parts):
            ways = ["mps"]
        options = choosing.options(parts, Room.of(alike, _least(alike)), num_gpus, ways, asked)
        options = [option for option in options if _asked_for(option, config.gpu.mode)] or options
    best = options[0] if options else None
    choices: dict[str, Choice] | None = None
    if config.gpu.fraction != "auto":
        choices = placing.asked(nodes, config.gpu.fraction, estimates.needs())
    elif best is not None:
        largest = max(parts, key=lambda part: part.size.trials)
        by_device = {
            device: replace(largest, profile=estimates.on(device) or largest.profile) for device in by_type(nodes)
        }
        choices = placing.measured(nodes, best, by_device, num_gpus, site.device)
    mps = config.gpu.mps == "on" or (config.gpu.mps == "auto" and best is not None and best.way == "mps")
    lines = [*left_out, *_predicted_lines(options, estimates)]
    predicted = _predicted(options, estimates)
    if found.fuser is not None and (members := _members(config, nodes, found, best)) is not None:
        both = replace(make_fused_plan(nodes, config, num_trials), members=members)
        return Decision(both, [*split_lines(both, site.names), *lines], predicted, mps=False)
    if isinstance(found.fuser, Fuser) and (config.gpu.mode == "fused" or (best is not None and any(best.fused))):
        if config.gpu.mode == "auto" and best is not None:
            _prefer(found, best)
        both = make_fused_plan(nodes, config, num_trials, choices, mps=mps)
        lines = [*fused_lines(config, both, found.groups if found.drawn else None, site.names), *lines]
        return _under_mps(Decision(both, lines, predicted, mps and _shared(both.alone)), site, config)
    made = make_plan(nodes, config, num_trials, choices, mps=mps)
    lines = [*plan_lines(config, made, site.names), *lines]
    if config.gpu.mode in NEEDS:
        lines.append(f"plan: {NEEDS[config.gpu.mode]}, so every trial is trained alone")
    return _under_mps(Decision(made, lines, predicted, mps and _shared(made)), site, config)


def _under_mps(decision: Decision, site: Site, config: SweepConfig) -> Decision:
    """With a line for a person where it is; a simulated device has no MPS."""
    if not decision.mps or site.device_gib is None:
        return decision
    return replace(decision, lines=[*decision.lines, *mps_lines(asked=config.gpu.mps == "on")])


def _members(config: SweepConfig, nodes: Sequence[Node], found: Grouped, best: Option | None) -> int | None:
    """Into how many logical devices a device is split; None where it is not."""
    if not isinstance(found.fuser, Together):
        return None
    if config.gpu.mode == "auto":
        return best.n if best is not None and best.way == "split" else None
    if config.gpu.width != "auto":
        return config.gpu.width
    if best is not None and best.way == "split":
        return best.n
    return min(choice.share.trials_per_gpu for choice in placing.automatic(nodes).values())


def _shared(packed: Plan) -> bool:
    """Whether trials share a GPU: one alone has nobody to run beside under MPS."""
    return any(part.share.trials_per_gpu > 1 for part in packed.parts)


def _asked_for(option: Option, mode: str) -> bool:
    """Whether it is of the mode that was asked for; of auto, every one."""
    if mode == "auto":
        return True
    if mode == "split":
        return option.way == "split"
    return any(option.fused) == (mode == "fused") and option.way != "split"


def _least(nodes: Sequence[Node]) -> float | None:
    """Free memory of the GPU that has the least."""
    return min((node.free_gib for node in nodes if node.free_gib is not None), default=None)


def _prefer(found: Grouped, best: Option) -> None:
    """Groups that are faster alone are trained alone, here and where trials are drawn later."""
    assert found.fuser is not None
    alone = {group.signature for group, array in zip(found.groups, best.fused, strict=True) if not array}
    found.fuser.alone = dict.fromkeys(alone, FASTER_ALONE)
    for group in found.groups:
        group.reason = group.reason or found.fuser.alone.get(group.signature)


def _predicted_lines(options: Sequence[Option], estimates: Estimates) -> list[str]:
    notes = [f"plan: {note}" for note in estimates.notes]
    if not options:
        return [*notes, f"plan: not measured: {estimates.source}"] if estimates.source else notes
    told = "; ".join(option.told() for option in options)
    if len(options) > 1 and options[1].within_noise_of(options[0]):
        told += "; the first two are within noise of each other"
    return [*notes, f"plan: predicted, by a {estimates.source}: {told}"]


def _predicted(options: Sequence[Option], estimates: Estimates) -> dict[str, Any]:
    if not options:
        return {}
    return {
        "source": estimates.source,
        "probe_s": None if estimates.probe_s is None else round(estimates.probe_s, 2),
        "chosen": options[0].name,
        "wall_s": {option.name: round(option.wall_s, 2) for option in options},
        "off_s": {option.name: round(option.off_s, 2) for option in options},
        "memory_gib": {option.name: None if option.gib is None else round(option.gib, 2) for option in options},
    }
