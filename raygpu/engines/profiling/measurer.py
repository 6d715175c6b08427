"""Estimate the speed of a sweep's trainings before it is planned: by kept profiles, or by a probe that repays."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from raygpu.config import SweepConfig
from raygpu.config.command_names import typed
from raygpu.config.sections import Way
from raygpu.config.source import Source
from raygpu.devices import mps
from raygpu.engines.profiling.profile_key import subject, versions_of
from raygpu.engines.profiling.sweep_probe import BUDGET, WIDTHS, SweepProbe, most_s, numbers_tried
from raygpu.engines.profiling.workload import Workload
from raygpu.experiment import Splits, reads_later
from raygpu.planning.cost_model import FreeMemory, Option, Size, options
from raygpu.planning.estimates import Estimates, Hardware, roughly, size
from raygpu.planning.gpu_shares import by_type
from raygpu.planning.profile_coverage import array_outdoes, ended_by_time, lacking
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.schedule import WORKER_S
from raygpu.planning.step_cost import StepCost
from raygpu.planning.sweep_plan import best_first, generations_ratio
from raygpu.records.profile_store import ProfileStore
from raygpu.search.signature import ITS_OWN, Group, Signature

if TYPE_CHECKING:  # Ray and torch take seconds to import
    from raygpu.engines.cluster.cluster import Cluster
    from raygpu.training.quick_estimate import QuickEstimate

logger = logging.getLogger(__name__)
PROBE_S = 3 * WORKER_S
"""Minimum duration of a probe in seconds."""
KERAS_PER_S = 50_000.0
"""Samples/s assumed for a Keras training before any is run."""
LOOK = 0.1
"""Maximum share of a sweep's training that a look at a few steps may take."""
LOOK_S = 2.0
"""Maximum seconds that a look may take."""
AFTER_A_LOOK = 0.1
"""Maximum share of the sweep's time that a probe may take where a look at a few steps has compared the ways already."""
LONG_S = 2400.0
"""Seconds of a sweep, one training at a time, above which a probe repays even with an array 50 times as fast."""


@dataclass(frozen=True, slots=True)
class QuickLook:
    """Findings about a sweep from a few steps of training."""

    sweep_s: float | None
    """Seconds of the whole sweep in the fastest way, or one training at a time where no other way's speed is known;
    None if the steps failed."""
    rough: Profile | None = None
    """Profile from these steps; None if they do not represent the device that the sweep runs on."""
    in_arrays: bool = False
    """Whether `sweep_s` are those of arrays whose speed is assumed."""


class Measurer:
    """Find or measure the profiles of a sweep's experiment.

    groups: the sweep's known trials by signature; at least one group with one trial.
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
        self.store = ProfileStore.at(config.profiles)
        self.largest = max(groups, key=lambda group: len(group.trials))
        self._first = self.largest.trials[0]
        self._step_cost: StepCost | None = None
        """Cost of the largest group's step on a GPU; None before it is looked at, and where it cannot be counted."""
        self._time_budget_s = config.time_budget_s or math.inf

    @cached_property
    def _versions(self) -> dict[str, str]:
        """Versions of the training's code and of what runs it: a long script's data takes long to read."""
        return versions_of(self.source, self.code)

    def kept(self, hardware: Hardware) -> tuple[Estimates, bool]:
        """Return the estimates from kept profiles of the same versions, and whether to run a probe.

        A probe is due if no profile covers the ways to choose between and the sweep is long enough to repay it.
        """
        estimates = Estimates()
        self._compare(estimates, hardware)
        gpu = self.config.gpu
        open_mode = gpu.mode == "auto" and self.source.kind in ("torch", "keras")
        if not open_mode and (gpu.fraction != "auto" or gpu.mode == "fused"):
            estimates.kept = self._found(self._subject(self.largest, hardware))
            if gpu.mode == "fused" and self.config.time_budget_s is not None:
                self._predict(estimates, hardware)
            return estimates, False  # nothing is left to be chosen but, with a time budget, the members of an array
        in_part: dict[Signature, Profile] = {}
        for group in self.groups:
            profile = self._found(self._subject(group, hardware))
            if profile is not None and profile.measured("process"):  # every prediction compares with one alone
                is_in_part = self._lacking(profile, group, hardware)
                (in_part if is_in_part else estimates.own)[group.signature] = profile
        if self._taken(estimates, estimates.own):
            return estimates, False
        estimates.source = self._unmeasurable(hardware) or ""
        if estimates.source:
            return estimates, False
        look = self._look(hardware)
        share = BUDGET if look.rough is None else AFTER_A_LOOK
        if look.sweep_s is None or share * min(look.sweep_s, self._time_budget_s) >= PROBE_S:
            return estimates, not self._is_as_far(estimates, in_part, hardware)
        short_s = min(look.sweep_s, self._time_budget_s)
        estimates.source, estimates.is_timed_now = f"the sweep is short (about {short_s:.0f} s)", True
        if look.rough is not None:
            estimates.reference = look.rough
            estimates.source = f"few steps here, as {estimates.source}"
        elif (
            look.in_arrays
            and look.sweep_s <= self._time_budget_s
            and not any(each.of("fused") for each in in_part.values())
        ):
            self._prefer_arrays(estimates)
        else:
            self._taken(estimates, in_part)
        return estimates, False

    def _prefer_arrays(self, found: Estimates) -> None:
        """Have a short sweep train in arrays, which are not measured."""
        found.prefers_arrays = True
        found.source += ", so similar trials train as arrays"

    def _predict(self, found: Estimates, hardware: Hardware) -> None:
        """Let the kept profile, or a look at a few steps, predict the time of a sweep whose way is fixed."""
        if found.kept is not None:
            found.reference, found.source = found.kept, f"kept profile{self._of_synthetic([found.kept])}"
        elif hardware.device_gib is None and self._unmeasurable(hardware) is None:
            rough = self._look(hardware).rough  # of a GPU, steps on the CPU tell nothing
            if rough is not None:
                found.reference, found.source, found.is_timed_now = rough, "few steps here", True

    def _taken(self, found: Estimates, profiles: dict[Signature, Profile]) -> bool:
        """Use these profiles for the estimates; return whether there is one for any of the groups."""
        groups = [group for group in self.groups if group.signature in profiles]
        if not groups:
            return False
        found.own = profiles
        found.reference = profiles[max(groups, key=lambda group: len(group.trials)).signature]
        found.source = f"kept profile of {found.reference.measured_at[:10]}{self._of_synthetic(profiles.values())}"
        return True

    def _of_synthetic(self, profiles: Iterable[Profile]) -> str:
        """Return words on made-up data behind the plan of a sweep of real data; empty for its own kind of data."""
        is_other = not self.config.data.synthetic and any(profile.synthetic for profile in profiles)
        return ", of synthetic data" if is_other else ""

    def _use_speed_of_one(self, found: Estimates, profile: Profile, source: str, hardware: Hardware) -> None:
        """Have a sweep whose time ended the measurement after one training prefer arrays, if they end earlier."""
        found.source = f"the sweep is short: {source} ended with one training's speed"
        alone = next((p.samples_per_s for p in profile.points if (p.way, p.n) == ("process", 1)), None)
        look = self._in_arrays(alone, hardware) if alone else None
        if look is not None and (look.sweep_s or 0.0) <= self._time_budget_s:
            self._prefer_arrays(found)

    def _is_as_far(self, found: Estimates, in_part: dict[Signature, Profile], hardware: Hardware) -> bool:
        """Return whether a probe would end where time has ended an earlier one; then use what that one has measured."""
        profile = in_part.get(self.largest.signature)
        if profile is None:
            return False
        seconds = most_s(profile.points, [*self._numbers(self.largest, hardware)], self._samples, self._time_budget_s)
        if not ended_by_time(profile, self._lacking(profile, self.largest, hardware), seconds):
            return False
        if profile.is_of_one:
            self._use_speed_of_one(found, profile, f"a probe of {profile.measured_at[:10]}", hardware)
        else:
            self._taken(found, in_part)
        return True

    def _lacking(self, profile: Profile, group: Group, hardware: Hardware) -> list[Way]:
        """Return the ways to choose between that a profile does not tell of: one of fewer ways would hide the
        others."""
        numbers = self._numbers(group, hardware)
        needed = {way: of if way == "process" else of[:1] for way, of in numbers.items()}
        members, processes = self._size.of("fused"), numbers["process"][-1]
        if "fused" in needed and array_outdoes(profile.points, members, processes, generations_ratio(self.config)):
            needed = {"fused": needed["fused"]}
        if "mps" in needed and hardware.uuid is not None and mps.unavailable(hardware.uuid) is not None:
            del needed["mps"]
        return lacking(profile, needed, FreeMemory.of(hardware.nodes, hardware.free_gib))

    def _numbers(self, group: Group, hardware: Hardware) -> dict[Way, list[int]]:
        """Return the numbers of trainings at once that a probe of a group tries, by way."""
        gpu = self.config.gpu
        ways: dict[Way, bool] = {
            "process": True,
            "fused": self._may_fuse(group),
            "split": self._may_split,
            "mps": gpu.mps != "off" and gpu.fraction == "auto" and hardware.uuid is not None,
        }
        is_gpu = hardware.device_gib is not None
        return numbers_tried([way for way in ways if ways[way]], self._size, int(hardware.num_cpus), on_gpu=is_gpu)

    def _may_fuse(self, group: Group) -> bool:
        return self.config.gpu.mode in ("auto", "fused") and self.source.kind == "torch" and group.reason is None

    @property
    def _size(self) -> Size:
        """Return the amount of training of the largest group."""
        return size(self.config, len(self.largest.trials) / sum(len(group.trials) for group in self.groups))

    @property
    def _may_split(self) -> bool:
        in_memory = self.splits is not None and not reads_later(self.splits.train_inputs)
        return self.config.gpu.mode in ("auto", "split") and self.source.kind == "keras" and in_memory

    def _compare(self, found: Estimates, hardware: Hardware) -> None:
        """Add the kept profiles of the largest group on each type of the sweep's devices, and on others."""
        nodes = by_type(hardware.nodes)
        if len(nodes) == 1:
            return
        found.types = tuple(nodes)
        key = self._subject(self.largest, hardware)
        for device, (node, *_) in nodes.items():
            there = replace(hardware, device=node.device, device_gib=node.device_gib)
            profile = self._found(self._subject(self.largest, there))
            if profile is not None and profile.best() is not None:
                found.by_device[device] = profile
        others = (p.in_epochs_of(self._samples_per_epoch) for p in self.store.all() if p.subject.same_training(key))
        profiles = [*found.by_device.values(), *others]
        found.elsewhere = next((p for p in profiles if p.memory("process", "device_gib") is not None), None)

    def _found(self, subject: Subject) -> Profile | None:
        """Return the kept profile of a subject, for this sweep's epochs; None if there is none."""
        profile = self.store.find(subject)
        return profile if profile is None else profile.in_epochs_of(self._samples_per_epoch)

    @property
    def _samples_per_epoch(self) -> int | None:
        """Training samples of an epoch; None if raygpu does not load the data."""
        return None if self.splits is None else self.splits.samples_per_epoch

    def _subject(self, group: Group, hardware: Hardware) -> Subject:
        workload = Workload(self.source, self.splits, group.trials[0], self.config.gpu.precision)
        return subject(workload, self._versions, group.signature, hardware)

    def _unmeasurable(self, hardware: Hardware) -> str | None:
        """Return why a measurement is impossible or cannot gain anything; None if it may gain."""
        if isinstance(self.config.gpu.fraction, float) and self.config.gpu.fraction > 1:
            return "trials take whole GPUs"
        if hardware.nodes[0].refusal is not None:
            return f"{hardware.device} takes one process at a time; --gpu.mode fused trains several trials in one"
        if self.splits is None:
            return f"raygpu cannot train a part of a function or script; {typed('pack')} measures it"
        if len(self.largest.trials) < 2:
            fault = self.largest.reason if self.largest.reason != ITS_OWN else None
            return fault or ("every trial is another program" if len(self.groups) > 1 else "there is one trial")
        return None

    @property
    def _samples(self) -> float:
        """Training samples of the whole sweep."""
        assert self.splits is not None
        sweep_size = size(self.config)
        return sweep_size.trials * sweep_size.epochs * self.splits.samples_per_epoch

    def _look(self, hardware: Hardware) -> QuickLook:
        """Run a few steps in this process, on the CPU: it has loaded the experiment already, and needs no start."""
        assert self.splits is not None
        samples = self._samples
        if self.source.kind != "torch":
            return QuickLook(samples / KERAS_PER_S)
        from raygpu.training.quick_estimate import QuickEstimate  # torch takes seconds to import

        estimate = QuickEstimate(self.source, self.code, self.splits, self.config.gpu.precision)
        if hardware.device_gib is not None:
            return self._look_for_gpu(estimate, hardware)
        samples_per_s = estimate.samples_per_s(self._first)
        if not samples_per_s:
            return QuickLook(None)
        alone_s = samples / samples_per_s
        look = QuickLook(alone_s)
        most_s = min(alone_s, self._time_budget_s)
        # A sweep of seconds takes as long as its processes' start, and a sweep of hours repays a probe, whichever way
        # is the fastest.
        if alone_s < WORKER_S:
            return self._in_arrays(samples_per_s, hardware) or look
        if not WORKER_S <= most_s < LONG_S:
            return look
        most = int(min(LOOK * samples, LOOK_S * samples_per_s) / estimate.samples(self._first)) - 1
        num_trials = min(WIDTHS[1], self._size.of("fused") if self._may_fuse(self.largest) else 1, most)
        if num_trials < 1:
            return look
        try:
            points = estimate.points(self.largest.trials[:num_trials], int(hardware.num_cpus))
        except Exception:  # the user's code: its trials show it, each alone
            logger.debug("a few steps of the sweep's training", exc_info=True)
            return look
        rough = Profile(self._subject(self.largest, hardware), self.splits.samples_per_epoch, tuple(points))
        return QuickLook(self._fastest(rough, hardware).wall_s, rough)

    def _look_for_gpu(self, estimate: QuickEstimate, hardware: Hardware) -> QuickLook:
        """Predict the sweep's time on a GPU from what a step computes: the CPU's time says little of it."""
        assert self.splits is not None
        cost = self._step_cost = estimate.step_cost(self._first)
        speeds = [] if cost is None else [cost.samples_per_s]
        if cost is None or reads_later(self.splits.train_inputs):  # reading can take longer than the step
            speeds.append(estimate.samples_per_s(self._first))
        samples_per_s = min(speeds)
        if not samples_per_s:
            return QuickLook(None)
        return self._in_arrays(samples_per_s, hardware) or QuickLook(self._samples / samples_per_s)

    def _in_arrays(self, samples_per_s: float, hardware: Hardware) -> QuickLook | None:
        """Return the seconds of training in arrays; None where trials in turn are predicted to end earlier, starts
        included.

        samples_per_s: speed of one training. On a simulated GPU, where this is asked for sweeps of seconds alone, an
        array's step is assumed to take as long as a training's.
        """
        width = self.config.gpu.width
        widest = WIDTHS[1] if width == "auto" else width
        members = min(widest, self._size.of("fused"))
        cost = self._step_cost
        if members < 2 or not self._may_fuse(self.largest) or (cost is None and hardware.device_gib is not None):
            return None

        def gain_of(count: int) -> float:
            """Return the speed of an array over that of one training."""
            return count if cost is None else cost.gain(count)

        assert self.splits is not None
        gain = gain_of(members)
        array = Point("fused", members, gain * samples_per_s, gain)
        points = (Point("process", 1, samples_per_s, 1.0), array)
        assumed = Profile(self._subject(self.largest, hardware), self.splits.samples_per_epoch, points)
        if not any(self._fastest(assumed, hardware).fused):
            return None
        parts = Estimates(reference=assumed).parts(self.groups, self.config)
        trainings = sum(part.size.trials for part in parts)
        steps = sum(
            part.size.trials / (gain_of(min(widest, part.size.of("fused"))) if part.can_fuse else 1) for part in parts
        )
        return QuickLook(WORKER_S + self._samples / samples_per_s * steps / trainings, in_arrays=True)

    def _fastest(self, profile: Profile, hardware: Hardware) -> Option:
        """Return the fastest way to run the sweep by this profile of all its groups."""
        parts = Estimates(reference=profile).parts(self.groups, self.config)
        num_gpus = sum(node.num_gpus for node in hardware.nodes)
        return best_first(options(parts, FreeMemory.of(hardware.nodes, None), num_gpus), self.config)[0]

    def probe(self, cluster: Cluster, hardware: Hardware) -> Estimates:
        """Measure the largest group's trainings while the sweep repays it, keep the profile, and return estimates."""
        started = time.monotonic()
        assert self.splits is not None
        workload = Workload(self.source, self.splits, self._first, self.config.gpu.precision)
        probing = SweepProbe(cluster, workload, self._size, self._time_budget_s, generations_ratio(self.config))
        benchmark = probing.measure([*self._numbers(self.largest, hardware)], self._samples)
        key = self._subject(self.largest, hardware)
        earlier = self._found(key)
        profile = Profile(
            key,
            self.splits.samples_per_epoch,
            tuple(benchmark.points),
            tuple(benchmark.notes),
            datetime.now(UTC).isoformat(timespec="seconds"),
            self.config.data.synthetic,
            probing.ended_s,
        )
        seconds = time.monotonic() - started
        estimates = Estimates(probe_s=seconds, source=f"probe of {seconds:.0f} s")
        self._compare(estimates, hardware)
        if profile.best() is None:
            estimates.source = f"one training alone failed ({profile.points[0].fault})"
            return estimates
        probe_note = f"measured in {seconds:.0f} s; {self.store.told(profile)}"
        estimates.notes = (probe_note, *(note for note in profile.notes if note.startswith("mps:")))
        if any(point.doubt is not None for point in profile.points):
            profile = roughly(profile)
            estimates.source += " on a busy machine, rough and not all kept"
        if earlier is not None:  # what was measured before counts too, as it is kept
            profile = profile.over(earlier)
        if profile.is_of_one and self._lacking(profile, self.largest, hardware):
            self._use_speed_of_one(estimates, profile, estimates.source, hardware)
        else:
            estimates.own[self.largest.signature] = estimates.reference = profile
        return estimates
