"""What a sweep knows of its trainings' speed before it plans: kept profiles, or a probe that is worth its seconds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from raygpu.choosing import WORKER_S, Part, Size
from raygpu.config import SweepConfig, Way
from raygpu.devices import host
from raygpu.devices.nvml import Gpu
from raygpu.experiment import Source, Splits
from raygpu.grouping import Group, Signature
from raygpu.halving import mean_epochs
from raygpu.packing import Affine, Node, by_type
from raygpu.profiles import Profile, Profiles, Subject
from raygpu.records import SIMULATED
from raygpu.subjects import subject

if TYPE_CHECKING:  # Ray takes seconds to import
    from raygpu.engines.climb import Climb
    from raygpu.engines.cluster import Cluster

BUDGET = 0.25
"""Of the predicted sweep, what a probe may take."""
WINDOW_S = 0.3
ROUNDS = 2
WIDTHS = (8, 64)
"""Members of the arrays that a probe tries: its answer is which way, and an array measures its own width."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where a sweep runs, as a plan sees it."""

    nodes: Sequence[Node]
    names: Sequence[str]
    """Of its devices."""
    device: str
    """The type that profiles are kept by: the first GPU's name, or the processor's where one is simulated."""
    device_gib: float | None
    num_cpus: float
    """Of the first machine."""

    @classmethod
    def local(cls, gpus: Sequence[Gpu], nodes: Sequence[Node]) -> Site:
        """This machine. gpus: none where one is simulated."""
        if not gpus:
            return cls(nodes, [SIMULATED], host.cpu_name(), None, nodes[0].num_cpus)
        num_cpus = nodes[0].num_cpus if len(nodes) == 1 else host.num_cpus()
        return cls(nodes, [gpu.name for gpu in gpus], gpus[0].name, gpus[0].memory_gib, num_cpus)

    @classmethod
    def of(cls, cluster: Cluster) -> Site:
        first, names = cluster.devices[0], [device.name for device in cluster.devices]
        device = first.name if first.uuid is not None else host.cpu_name()
        num_cpus = host.num_cpus() if cluster.local and len(cluster.nodes) > 1 else cluster.nodes[0].num_cpus
        return cls(cluster.nodes, names, device, first.memory_gib, num_cpus)


@dataclass(slots=True)
class Estimates:
    """Profiles of a sweep's signatures."""

    own: dict[Signature, Profile] = field(default_factory=dict)
    reference: Profile | None = None
    """Of the largest group: for groups that have none of their own."""
    source: str = ""
    """Where the reference comes from, in a few words."""
    probe_s: float | None = None
    """What measuring it took; None where it was kept."""
    by_device: dict[str, Profile] = field(default_factory=dict)
    """Where a sweep has GPUs of several types: of the largest group, by type, and of no other one than that type's."""
    elsewhere: Profile | None = None
    """Of the largest group, on another device."""
    types: tuple[str, ...] = ()
    """Of the sweep's devices, where there are several."""

    def on(self, device: str) -> Profile | None:
        """What is known of the largest group on a type of device: its own profile, or another type's."""
        return self.by_device.get(device, self.reference or self.elsewhere)

    def needs(self) -> dict[str, Affine]:
        """GiB of device memory that n trainings take, by type."""
        found = {device: self.on(device) for device in self.types}
        return {
            device: line
            for device, profile in found.items()
            if profile is not None and (line := profile.memory("process", "device_gib")) is not None
        }

    def parts(self, groups: Sequence[Group], config: SweepConfig) -> list[Part]:
        """The sweep's trials by signature, with what is known of them."""
        assert self.reference is not None
        known = sum(len(group.trials) for group in groups)
        return [
            Part(
                self.own.get(group.signature, self.reference),
                size(config, len(group.trials) / known),
                fusable=group.reason is None,
            )
            for group in groups
        ]


def size(config: SweepConfig, part: float = 1.0) -> Size:
    """What this part of the sweep's trials comes to."""
    assert config.trials is not None  # a sweep that is prepared knows it
    epochs: float = config.epochs or 1
    stopping = config.stopping
    if stopping.algorithm == "halving" and config.epochs is not None:
        epochs = mean_epochs(stopping.grace_epochs, stopping.reduction, config.epochs)
    trials = max(1, round(config.trials * part))
    generation = config.search.generation if config.search.algorithm == "optuna" else config.trials
    return Size(trials, epochs, max(1, min(trials, round(generation * part))))


class Measurer:
    """Finds or measures profiles of one sweep's experiment.

    trials: those of the sweep that are known; one of them at least. groups: of equal signature; None where the
    experiment is not fused.
    """

    def __init__(
        self,
        config: SweepConfig,
        source: Source,
        code: Any,
        splits: Splits | None,
        groups: Sequence[Group],
    ) -> None:
        self.config = config
        self.source = source
        self.code = code
        self.splits = splits
        self.groups = groups
        self.store = Profiles.at(config.profiles)
        self.largest = max(groups, key=lambda group: len(group.trials))

    def kept(self, site: Site) -> tuple[Estimates, bool]:
        """What earlier measurements of the same versions tell; and whether nothing does, and a probe would repay."""
        found = Estimates()
        self._compare(found, site)
        gpu = self.config.gpu
        open_mode = gpu.mode == "auto" and self.source.kind in ("torch", "keras")
        if not open_mode and (gpu.fraction != "auto" or gpu.mode == "fused"):
            return found, False  # nothing is left to be chosen
        for group in self.groups:
            profile = self.store.find(self._subject(group, site))
            if profile is not None and profile.best() is not None:
                found.own[group.signature] = profile
        known = [group for group in self.groups if group.signature in found.own]
        if known:
            first = max(known, key=lambda group: len(group.trials))
            found.reference = found.own[first.signature]
            found.source = f"kept profile of {found.reference.measured_at[:10]}"
            return found, False
        found.source = self._unprobed(site) or ""
        return found, not found.source

    def _compare(self, found: Estimates, site: Site) -> None:
        """What is kept of the largest group on each type of the sweep's devices, and on others."""
        nodes = by_type(site.nodes)
        if len(nodes) == 1:
            return
        found.types = tuple(nodes)
        own = self._subject(self.largest, site)
        for device, (node, *_) in nodes.items():
            there = replace(own, device=node.device, device_gib=node.device_gib)
            profile = self.store.find(there)
            if profile is not None and profile.best() is not None:
                found.by_device[device] = profile
        known = [*found.by_device.values(), *(p for p in self.store.all() if p.subject.same_training(own))]
        found.elsewhere = next((p for p in known if p.memory("process", "device_gib") is not None), None)

    def _subject(self, group: Group, site: Site) -> Subject:
        what = self.source, self.code, self.splits, group.signature, self.config.gpu.precision
        return subject(*what, site.device, site.device_gib, site.num_cpus)

    def _unprobed(self, site: Site) -> str | None:
        """Why a probe would not be worth its time; None where it is."""
        if isinstance(self.config.gpu.fraction, float) and self.config.gpu.fraction > 1:
            return "trials take whole GPUs"
        if site.nodes[0].refusal is not None:
            return f"{site.device} takes one process at a time"
        if self.splits is None:
            return "raygpu cannot train a part of a function or script; python -m raygpu.pack measures it"
        if len(self.largest.trials) < 2:
            return "every trial is another program" if len(self.groups) > 1 else "there is one trial"
        guess_s = self._guess_s()
        if guess_s is not None and BUDGET * guess_s < 2 * WORKER_S:
            return f"the sweep is short (about {guess_s:.0f} s of training)"
        return None

    def _guess_s(self) -> float | None:
        """Seconds of the whole sweep, one training at a time, by a few steps on the CPU; None if they fail."""
        assert self.splits is not None
        if self.source.kind != "torch":
            samples_per_s = 50_000.0
        else:
            from raygpu.training.fusion import samples_per_s as measured

            samples_per_s = measured(self.code, self.splits, self.largest.trials[0])
        whole = size(self.config)
        return whole.trials * whole.epochs * self.splits.num_train / samples_per_s if samples_per_s else None

    def probe(self, cluster: Cluster, site: Site) -> Estimates:
        """Measure the largest group's trainings for as long as the sweep repays, and keep the profile."""
        from raygpu.engines.climb import Climb
        from raygpu.engines.mps import daemons
        from raygpu.engines.probe import Probe

        started = time.monotonic()
        ways: list[Way] = ["process"]
        if self.largest.reason is None and self.source.kind == "torch" and self.config.gpu.mode != "process":
            ways.append("fused")
        if self.source.kind == "keras" and self.config.gpu.mode != "process":
            ways.append("split")
        probe = Probe(
            cluster,
            cluster.devices[0],
            self.source,
            self.splits,
            self.largest.trials[0],
            self.config.gpu.precision,
            tempfile.gettempdir(),
        )
        most = size(self.config, len(self.largest.trials) / sum(len(group.trials) for group in self.groups)).at_once
        wanted = cluster.local and self.config.gpu.mps != "off" and self.config.gpu.fraction == "auto"
        with daemons(cluster.devices[:1], lambda reason: None, wanted=wanted) as mps:
            access = mps.access.get(cluster.devices[0].uuid or "")
            if access is not None:
                ways.append("mps")
            climb = Climb(probe, ways, most=most, rounds=ROUNDS, window_s=WINDOW_S, mps=access)
            try:
                if climb.begin():
                    first: dict[Way, int] = {"process": 1, "fused": min(most, WIDTHS[0])}
                    climb.measure({way: n for way, n in first.items() if way in ways})
                    self._look_further(climb, ways, most, site, started, probe.num_cpus)
            finally:
                probe.close()  # before the daemon
        num_train = self.splits.num_train if self.splits is not None else None
        measured_at = datetime.now(UTC).isoformat(timespec="seconds")
        profile = Profile(
            self._subject(self.largest, site),
            num_train,
            tuple(climb.points),
            tuple(climb.notes),
            measured_at,
            self.config.data.synthetic,
        )
        seconds = time.monotonic() - started
        found = Estimates(probe_s=seconds, source=f"probe of {seconds:.0f} s")
        self._compare(found, site)
        if profile.best() is None:
            found.source = f"one training alone failed ({profile.points[0].fault})"
            return found
        self.store.keep(profile)
        found.own[self.largest.signature] = found.reference = profile
        return found

    def _look_further(
        self, climb: Climb, ways: Sequence[Way], most: int, site: Site, started: float, num_cpus: int
    ) -> None:
        """Wider arrays, which cost a second each, and more processes, for as long as they may change the answer."""
        if "fused" in ways and most > WIDTHS[0]:
            climb.measure({"fused": min(most, WIDTHS[1])})
        assert self.splits is not None
        whole = size(self.config)
        work = whole.trials * whole.epochs * self.splits.num_train
        numbers = [n for n in (num_cpus,) if n > 1] if site.device_gib is None else [2, 4, 8]
        for n in numbers:
            rates = {(p.way, p.n): p.samples_per_s for p in climb.points if p.samples_per_s}
            packed = [rate for (way, _), rate in rates.items() if way == "process"]
            array = max((rate for (way, _), rate in rates.items() if way == "fused"), default=0.0)
            # No process takes work from the others at best; and without a GPU there are only these cores.
            no_gain = array > n * rates["process", 1] if site.device_gib is None else packed[-1] < max(packed)
            spent_s = time.monotonic() - started + WORKER_S
            if n > most or no_gain or spent_s > BUDGET * (work / max(rates.values()) + WORKER_S):
                return
            climb.measure({way: n for way in ways if way != "fused"})
