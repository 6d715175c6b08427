"""The plan of a sweep: which trials are fused, how the others are packed, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from raygpu import choosing
from raygpu.choosing import Option, Room
from raygpu.config import GpuSection, SweepConfig
from raygpu.errors import BadInput
from raygpu.experiment import Source, Splits
from raygpu.fusing import Fuser, Grouper, Together
from raygpu.grouping import Group, Signature
from raygpu.measuring import Estimates, Site
from raygpu.packing import FusedPlan, Node, Plan, Share, auto_share, plan, snap
from raygpu.search import Drawn, Proposer
from raygpu.space import Space, random_trials
from raygpu.subjects import signature
from raygpu.views.plans import fused_lines, plan_lines, split_lines

NEEDS = {
    "fused": "only a TorchExperiment can be fused",
    "split": "only a KerasExperiment runs on TensorFlow's logical devices",
}
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
    fuser: Grouper | None
    """None where nothing can be fused or split."""
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
    if config.gpu.mode in ("process", "split") or splits is None or source.kind != "torch":
        try:
            common = signature(source, code, splits, trials[0])
        except BadInput:  # its trials will show it, each alone
            common = Signature(())
        split = source.kind == "keras" and config.gpu.mode in ("auto", "split")
        return Grouped([Group(common, list(trials), "not fused")], Together() if split else None, drawn)
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

    @property
    def mode(self) -> str:
        """The `mode` of `summary.json`."""
        if isinstance(self.plan, Plan):
            return "process"
        return "fused" if self.plan.members is None else "split"

    def settled(self, gpu: GpuSection) -> dict[str, Any]:
        """`[gpu]` with what was chosen in place of auto: a sweep that is resumed goes on as it began."""
        chosen: dict[str, Any] = {"mode": self.mode}
        if isinstance(self.plan, Plan):
            chosen["fraction"] = self.plan.share.fraction
        elif self.plan.members is not None:
            chosen["width"] = self.plan.members
        return gpu.model_dump() | chosen


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
        options = [option for option in options if _asked_for(option, config.gpu.mode)] or options
    best = options[0] if options else None
    lines = _predicted_lines(options, estimates)
    predicted = _predicted(options, estimates)
    if found.fuser is not None and (members := _parts(config, nodes, found, best)) is not None:
        both = replace(make_fused_plan(nodes, config, num_trials, best), members=members)
        return Decision(both, [*split_lines(both, names), *lines], predicted, mps=False)
    if isinstance(found.fuser, Fuser) and (config.gpu.mode == "fused" or (best is not None and any(best.fused))):
        if config.gpu.mode == "auto" and best is not None:
            _prefer(found, best)
        both = make_fused_plan(nodes, config, num_trials, best)
        lines = [*fused_lines(config, both, found.groups if found.drawn else None, names), *lines]
        return Decision(both, lines, predicted, _mps(config, both.alone, best))
    made = make_plan(nodes, config, num_trials, best)
    lines = [*plan_lines(config, made, names), *lines]
    if config.gpu.mode in NEEDS:
        lines.append(f"plan: {NEEDS[config.gpu.mode]}, so every trial is trained alone")
    return Decision(made, lines, predicted, _mps(config, made, best))


def _parts(config: SweepConfig, nodes: Sequence[Node], found: Grouped, best: Option | None) -> int | None:
    """Into how many logical devices a device is split; None where it is not."""
    if not isinstance(found.fuser, Together):
        return None
    if config.gpu.mode == "auto":
        return best.n if best is not None and best.way == "split" else None
    if config.gpu.width != "auto":
        return config.gpu.width
    return best.n if best is not None and best.way == "split" else auto_share(nodes)[0].trials_per_gpu


def _mps(config: SweepConfig, packed: Plan, best: Option | None) -> bool:
    """Wanted, or measured to gain; a single trial on a GPU has nobody to share it with."""
    if packed.share.trials_per_gpu == 1:
        return False
    return config.gpu.mps == "on" or (config.gpu.mps == "auto" and best is not None and best.way == "mps")


def _asked_for(option: Option, mode: str) -> bool:
    """Whether it is of the mode that was asked for; of auto, every one."""
    if mode == "auto":
        return True
    if mode == "split":
        return option.way == "split"
    return any(option.fused) == (mode == "fused") and option.way != "split"


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
