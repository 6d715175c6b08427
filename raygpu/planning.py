"""The plan of a sweep: which trials are fused, how the others are packed, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raygpu import choosing
from raygpu.choosing import Option, Room
from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.experiment import Source, Splits
from raygpu.fusing import Fuser
from raygpu.grouping import Group, Signature
from raygpu.measuring import Estimates, Site
from raygpu.packing import FusedPlan, Node, Plan, Share, auto_share, plan, snap
from raygpu.search import Drawn, Proposer
from raygpu.space import Space, random_trials
from raygpu.subjects import signature
from raygpu.views.plans import fused_lines, plan_lines

FASTER_ALONE = "packed processes are predicted to be faster"


def make_plan(nodes: Sequence[Node], config: SweepConfig, num_trials: int, option: Option | None = None) -> Plan:
    """The plan of process mode for these nodes. option: how many at once, where it was measured. Raises BadInput."""
    fraction = config.gpu.fraction
    if fraction != "auto":
        share, reason = snap(fraction), f"asked for {fraction:g}"
    elif option is not None:
        share, reason = Share(option.n), option.bound or "measured"
    else:
        share, reason = auto_share(nodes)
    return _plan(nodes, config, share, reason, num_trials)


def make_fused_plan(
    nodes: Sequence[Node], config: SweepConfig, num_trials: int, option: Option | None = None
) -> FusedPlan:
    """The plan of fused mode for these nodes: by default, one array has a GPU for itself. Raises BadInput."""
    fraction = 1.0 if config.gpu.fraction == "auto" else config.gpu.fraction
    arrays = _plan(nodes, config, snap(fraction), f"asked for {fraction:g}", num_trials)
    return FusedPlan(arrays, make_plan(nodes, config, num_trials, option))


def _plan(nodes: Sequence[Node], config: SweepConfig, share: Share, reason: str, num_trials: int) -> Plan:
    try:
        return plan(nodes, share, reason, num_trials)
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
        return Grouped([Group(common, list(trials), "process mode")], None, drawn)
    fuser = Fuser(code, splits, config.gpu.precision, source.folder)
    return Grouped(fuser.groups(trials), fuser, drawn)


@dataclass(frozen=True, slots=True)
class Decision:
    """What runs and how, and what it is predicted to come to."""

    plan: Plan | FusedPlan
    lines: list[str]
    predicted: dict[str, Any]
    """The `predicted` of `summary.json`: seconds by way, and which one was taken; empty where nothing was measured."""
    mps: bool
    """Whether packed processes run under CUDA MPS, where it is to be had."""


def decide(site: Site, config: SweepConfig, num_trials: int, found: Grouped, estimates: Estimates) -> Decision:
    """The plan for this place. Raises BadInput."""
    nodes, names = site.nodes, site.names
    options: list[Option] = []
    if estimates.reference is not None:
        num_gpus = sum(node.num_gpus for node in nodes)
        asked = None if config.gpu.fraction == "auto" else snap(config.gpu.fraction).trials_per_gpu
        room = Room.of(nodes, site.free_gib)
        ways = [way for way in choosing.PACKED if way != ("mps" if config.gpu.mps == "off" else "")]
        options = choosing.options(estimates.parts(found.groups, config), room, num_gpus, ways, asked)
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
    lines = _predicted_lines(options, estimates)
    if fused:
        both = make_fused_plan(nodes, config, num_trials, best)
        lines = [*fused_lines(config, both, found.groups if found.drawn else None, names), *lines]
        return Decision(both, lines, _predicted(options, estimates), _mps(config, both.alone, best))
    made = make_plan(nodes, config, num_trials, best)
    lines = [*plan_lines(config, made, names), *lines]
    if config.gpu.mode == "fused":
        lines.append("plan: only a TorchExperiment can be fused, so every trial is trained alone")
    return Decision(made, lines, _predicted(options, estimates), _mps(config, made, best))


def _mps(config: SweepConfig, packed: Plan, best: Option | None) -> bool:
    """Wanted, or measured to gain; a single trial on a GPU has nobody to share it with."""
    if packed.share.trials_per_gpu == 1:
        return False
    return config.gpu.mps == "on" or (config.gpu.mps == "auto" and best is not None and best.way == "mps")


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
