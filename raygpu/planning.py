"""The plan of a sweep: which trials are fused, how the others are packed, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raygpu import choosing, placing
from raygpu.choosing import Option, Room
from raygpu.config import SweepConfig
from raygpu.devices.fitness import too_old
from raygpu.errors import BadInput
from raygpu.experiment import Source, Splits
from raygpu.fusing import Fuser
from raygpu.grouping import Group, Signature
from raygpu.measuring import Estimates, Site
from raygpu.packing import Choice, FusedPlan, Node, Plan, by_type, plan, snap
from raygpu.search import Drawn, Proposer
from raygpu.space import Space, random_trials
from raygpu.subjects import signature
from raygpu.views.plans import fused_lines, plan_lines

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
    try:
        return plan(nodes, choices, num_trials)
    except ValueError as error:
        raise BadInput(f"gpu.fraction: read {config.gpu.fraction}; {error}") from error


@dataclass(frozen=True, slots=True)
class Grouped:
    """What was found out of a sweep's trials before it is planned."""

    groups: list[Group]
    """Of all trials; where the search draws them as it goes, of such as it may draw."""
    fuser: Fuser | None
    """None where nothing can be fused."""
    drawn: bool
    """Whether the trials are known already."""
    architectures: tuple[str, ...] | None = None
    """That the framework is built for, as torch.cuda.get_arch_list() has them; None where that is not known."""


def grouped(
    config: SweepConfig, space: Space, proposer: Proposer, source: Source, code: Any, splits: Splits | None
) -> Grouped:
    """The trials in groups of one signature; in fused and auto mode, each group has been dry-run."""
    drawn = isinstance(proposer, Drawn)
    trials = (
        proposer.trials if isinstance(proposer, Drawn) else random_trials(space, config.search.generation, config.seed)
    )
    if config.gpu.mode == "process" or splits is None or source.kind != "torch":
        try:
            common = signature(source, code, splits, trials[0])
        except BadInput:  # its trials will show it, each alone
            common = Signature(())
        built_for = architectures() if source.kind == "torch" else None
        return Grouped([Group(common, list(trials), "process mode")], None, drawn, built_for)
    fuser = Fuser(code, splits, config.gpu.precision, source.folder)
    return Grouped(fuser.groups(trials), fuser, drawn, architectures())


def architectures() -> tuple[str, ...] | None:
    """What the installed torch is built for; None of one without CUDA."""
    import torch

    return tuple(torch.cuda.get_arch_list()) or None


def usable(nodes: Sequence[Node], built_for: Sequence[str] | None) -> tuple[list[Node], list[str]]:
    """The nodes whose GPUs the installed torch has code for, and a line for each type that is left out.

    Raises BadInput where none is left.
    """
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
    """What runs and how, and what it is predicted to come to."""

    plan: Plan | FusedPlan
    lines: list[str]
    predicted: dict[str, Any]
    """The `predicted` of `summary.json`: seconds by way, and which one was taken; empty where nothing was measured."""


def decide(site: Site, config: SweepConfig, num_trials: int, found: Grouped, estimates: Estimates) -> Decision:
    """The plan for this place. Raises BadInput."""
    nodes, left_out = usable(site.nodes, found.architectures)
    options: list[Option] = []
    parts: list[choosing.Part] = []
    num_gpus = sum(node.num_gpus for node in nodes)
    if estimates.reference is not None:
        asked = None if config.gpu.fraction == "auto" else snap(config.gpu.fraction).trials_per_gpu
        parts = estimates.parts(found.groups, config)
        alike = [node for node in nodes if node.device == site.device] or nodes
        options = choosing.options(parts, Room.of(alike, _least(alike)), num_gpus, asked=asked)
        if config.gpu.mode != "auto":  # what was asked for is done, at the number that is best for it
            wanted = config.gpu.mode == "fused"
            options = [option for option in options if any(option.fused) == wanted] or options
    best = options[0] if options else None
    if config.gpu.mode == "fused" and found.fuser is not None:
        fused = True
    else:
        fused = config.gpu.mode == "auto" and best is not None and any(best.fused)
    if fused and config.gpu.mode == "auto":
        assert found.fuser is not None
        assert best is not None
        _prefer(found, best)
    choices: dict[str, Choice] | None = None
    if config.gpu.fraction != "auto":
        choices = placing.asked(nodes, config.gpu.fraction, estimates.needs())
    elif best is not None:
        largest = max(parts, key=lambda part: part.size.trials)
        by_device = {
            device: replace(largest, profile=estimates.on(device) or largest.profile) for device in by_type(nodes)
        }
        choices = placing.measured(nodes, best, by_device, num_gpus)
    lines = _predicted_lines(options, estimates)
    if fused:
        both = make_fused_plan(nodes, config, num_trials, choices)
        lines = [*fused_lines(config, both, found.groups if found.drawn else None, site.names), *left_out, *lines]
        return Decision(both, lines, _predicted(options, estimates))
    made = make_plan(nodes, config, num_trials, choices)
    lines = [*plan_lines(config, made, site.names), *left_out, *lines]
    if config.gpu.mode == "fused":
        lines.append("plan: only a TorchExperiment can be fused, so every trial is trained alone")
    return Decision(made, lines, _predicted(options, estimates))


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
    if not options:
        return [f"plan: not measured: {estimates.source}"] if estimates.source else []
    told = "; ".join(
        f"{option.name} {option.wall_s:.0f} s" + ("" if option.gib is None else f" ({option.gib:.1f} GiB)")
        for option in options
    )
    return [f"plan: predicted, by a {estimates.source}: {told}"]


def _predicted(options: Sequence[Option], estimates: Estimates) -> dict[str, Any]:
    if not options:
        return {}
    return {
        "source": estimates.source,
        "probe_s": None if estimates.probe_s is None else round(estimates.probe_s, 2),
        "chosen": options[0].name,
        "wall_s": {option.name: round(option.wall_s, 2) for option in options},
        "memory_gib": {option.name: None if option.gib is None else round(option.gib, 2) for option in options},
    }
