"""A sweep's trials in groups of one signature, before it is planned: each that may be fused has been dry-run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raygpu.config import SweepConfig
from raygpu.config.source import Source
from raygpu.devices.fitness import too_old
from raygpu.errors import BadInput
from raygpu.experiment import Splits, reads_later
from raygpu.planning.gpu_shares import Node
from raygpu.planning.sweep_plan import Sharing
from raygpu.search.repeats import expected_trials, known_trials
from raygpu.search.samplers import Sampler
from raygpu.search.signature import Group, Signature, Signatures
from raygpu.search.space import Space
from raygpu.search.trials import Trial
from raygpu.training.folds import Folds
from raygpu.training.fused.groups import Grouper, KerasGrouper, TorchGrouper
from raygpu.training.start import signature


@dataclass(frozen=True, slots=True)
class Grouped:
    """A sweep's trials in groups, known before it is planned."""

    groups: list[Group]
    """Groups of all trials; of a random sample if the search draws its trials as it goes."""
    grouper: Grouper | None
    """Decides which trials share an array or a device; None if none can."""
    drawn: bool
    """Whether the trials are known already."""
    architectures: tuple[str, ...] | None = None
    """Architectures that the framework is built for, as torch.cuda.get_arch_list() has them; None if not known."""

    @property
    def read(self) -> frozenset[str]:
        """Names of the hyper-parameters that shape the trials' programs: the experiment's code reads them."""
        return frozenset(name for group in self.groups for name, _ in group.signature.values)

    @property
    def sharing(self) -> Sharing | None:
        """Way in which several trials can share one process; None if they cannot."""
        if self.grouper is None:
            return None
        return "split" if isinstance(self.grouper, KerasGrouper) else "fused"


def grouped(
    config: SweepConfig,
    space: Space,
    sampler: Sampler,
    source: Source,
    code: Any,
    splits: Splits | None,
    folds: Folds | None = None,
) -> Grouped:
    """Group the trials by signature; in fused and auto mode, a dry run tests each group of torch trials.

    folds: of a cross-validation; None without one.
    """
    drawn = known_trials(sampler) is not None
    trials = expected_trials(sampler, space, config)
    if config.gpu.mode in ("process", "split") or splits is None or source.kind != "torch":
        exchanges = config.population.interval is not None
        common = _common_signature(source, code, splits, trials if exchanges else trials[:1])
        in_memory = splits is not None and not reads_later(splits.train_inputs)
        can_split = config.gpu.mode in ("auto", "split") and not exchanges
        split = source.kind == "keras" and in_memory and can_split
        together = KerasGrouper() if split else None
        built_for = architectures() if source.kind == "torch" else None
        return Grouped([Group(common, list(trials), "not fused")], together, drawn, built_for)
    grouper = TorchGrouper(code, splits, config.gpu.precision, source.folder, folds)
    return Grouped(grouper.groups(trials), grouper, drawn, architectures())


def _common_signature(source: Source, code: Any, splits: Splits | None, trials: Sequence[Trial]) -> Signature:
    """Return the first trial's values of the hyper-parameters that the experiment's code reads for any of these."""

    def read(trial: Trial) -> frozenset[str]:
        """Return the names that the code reads for a trial."""
        return frozenset(name for name, _ in signature(source, code, splits, trial).values)

    found = [each for each in Signatures(read).of_each(trials) if isinstance(each, Signature)]  # others fail alone
    return Signature.of(trials[0], {name for each in found for name, _ in each.values})


def architectures() -> tuple[str, ...] | None:
    """Return the architectures that the installed torch is built for: empty without CUDA, None if unknown."""
    import torch

    if torch.version.cuda is None:
        return ()
    return tuple(torch.cuda.get_arch_list()) or None


def usable(nodes: Sequence[Node], built_for: Sequence[str] | None) -> tuple[list[Node], list[str]]:
    """Return the nodes whose GPUs the installed torch supports, and a line for each type that is left out.

    built_for: architectures as `torch.cuda.get_arch_list()` names them; None if unknown. A torch without CUDA trains on
    the CPU of any node. Raises BadInput if no node is left.
    """
    if built_for == ():
        on_cpu = {node.device: node.capability for node in nodes if node.capability is not None}
        return list(nodes), [
            f"plan: trials train on the CPU: {too_old(name, capability, ())}" for name, capability in on_cpu.items()
        ]
    faults = {
        node.device_type: fault
        for node in nodes
        if built_for is not None
        and node.capability is not None
        and (fault := too_old(node.device, node.capability, built_for)) is not None
    }
    usable_nodes = [node for node in nodes if node.device_type not in faults]
    if not usable_nodes:
        raise BadInput(list(faults.values()))
    return usable_nodes, [f"plan: left out: {fault}" for fault in faults.values()]
