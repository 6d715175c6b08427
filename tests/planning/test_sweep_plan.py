"""A sweep's decision: what is said of MPS, and when a plan waits for a cluster."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.cli.plan_view import decision_lines
from raygpu.config import SweepConfig
from raygpu.config.sections import ClusterSection, SearchSection, SweepClusterSection
from raygpu.errors import BadInput
from raygpu.planning.estimates import Estimates, Hardware
from raygpu.planning.gpu_shares import ArrayPlan, Node, Plan
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.sweep_plan import WHOLE_GPU, Decision, decide, make_fused_plan
from raygpu.search.signature import Group, Signature
from raygpu.search.trials import Trial
from raygpu.workflow.planner import Planner
from raygpu.workflow.trial_groups import Grouped

CARD = Node(32, 1, 200.0, device="card", device_gib=24.0, free_gib=23.0)
ON_CARD = Hardware([CARD], ["card"], "card", 24.0, 32)
SIMULATED = Hardware([Node(32, 1, 200.0)], ["simulated"], "a CPU", None, 32)
ONE = Signature(())
GROUPS = [Group(ONE, [Trial(Trial.name(i), i, {}) for i in range(32)], "not fused")]


def config(**gpu: Any) -> SweepConfig:
    values = {"experiment": "a:B", "metric": "x", "trials": 32, "epochs": 20, "gpu": gpu}
    return SweepConfig.model_validate(values)


def estimates(**rates: dict[int, float]) -> Estimates:
    points = tuple(Point(way, n, rate, rate / 100) for way, of_way in rates.items() for n, rate in of_way.items())  # type: ignore[arg-type]
    return Estimates(reference=Profile(Subject("a:B", {}, "", "float32", "card", 24.0, 32, {}), 1000, points))


FASTER = estimates(process={1: 100, 2: 120}, mps={2: 180, 3: 240})
SLOWER = estimates(process={1: 100, 2: 180}, mps={2: 120})


@pytest.mark.parametrize("hardware", [ON_CARD, SIMULATED])
@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        (Estimates(prefers_arrays=True), "fused"),
        (Estimates(), "process"),
    ],
)
def test_arrays_that_are_preferred_are_taken_where_nothing_is_measured(
    measured: Estimates, chosen: str, hardware: Hardware
) -> None:
    decision = decide(hardware, config(), 32, [replace(GROUPS[0], reason=None)], "fused", measured)
    assert (decision.mode, decision.predicted) == (chosen, {})


@pytest.mark.parametrize(
    ("search", "fused_rate", "mode"),
    [
        ({"algorithm": "random"}, 300, "fused"),
        ({"algorithm": "tpe"}, 300, "process"),
        ({"algorithm": "tpe"}, 900, "fused"),
        ({"algorithm": "tpe", "generation": 8}, 300, "fused"),
        ({"algorithm": "cmaes"}, 300, "fused"),
    ],
)
def test_arrays_of_a_search_that_learns_repay_what_their_generations_do_not_teach(
    search: dict[str, Any], fused_rate: float, mode: str
) -> None:
    sweep = config().model_copy(update={"search": SearchSection.model_validate(search)})
    measured = estimates(process={1: 100, 2: 250}, fused={8: fused_rate})
    on_split = estimates(process={1: 100, 2: 250}, split={4: fused_rate})
    assert (decide(SIMULATED, sweep, 32, GROUPS, "split", on_split).mode == "split") == (mode == "fused")
    decision = decide(SIMULATED, sweep, 32, [replace(GROUPS[0], reason=None)], "fused", measured)
    fastest = min(decision.predicted["wall_s"].values())
    assert (decision.mode, decision.predicted["wall_s"]["fused"] == fastest) == (mode, True)
    lines = "\n".join(decision_lines(decision, sweep, SIMULATED, drawn=not sweep.search.learns))
    assert ("the first is taken" in lines) == (mode == "process")


def test_trials_of_a_fold_are_alone_where_their_signature_is_faster_so() -> None:
    small, large = Signature((("hidden", "4"),)), Signature((("hidden", "8"),), fold_samples=(90, 10))
    trials = GROUPS[0].trials
    measured = estimates(process={1: 100, 2: 120}, fused={8: 900})
    slow = (Point("process", 1, 100, 1.0), Point("process", 2, 190, 1.9), Point("fused", 8, 90, 0.9))
    assert measured.reference is not None
    measured.own = {large: replace(measured.reference, points=slow)}
    decision = decide(SIMULATED, config(), 64, [Group(small, trials), Group(large, trials)], "fused", measured)
    assert list(decision.alone) == [large.without_folds]
    assert [group.reason is None for group in decision.groups] == [True, False]


@pytest.mark.parametrize(
    ("gpu", "measured", "hardware", "why"),
    [
        ({}, FASTER, ON_CARD, "measured to be faster"),
        ({}, SLOWER, ON_CARD, None),
        ({"mps": "off"}, FASTER, ON_CARD, None),
        ({"mps": "on", "fraction": 0.25}, Estimates(), ON_CARD, "asked for"),
        ({"mps": "on", "fraction": 1.0}, Estimates(), ON_CARD, None),
        ({"mps": "on", "fraction": 0.25}, Estimates(), SIMULATED, None),
    ],
)
def test_the_plan_says_when_packed_trials_run_under_mps(
    gpu: dict[str, Any], measured: Estimates, hardware: Hardware, why: str | None
) -> None:
    wanted = config(**gpu)
    decision = decide(hardware, wanted, 32, GROUPS, None, measured)
    lines = [line for line in decision_lines(decision, wanted, hardware, drawn=True) if "CUDA MPS" in line]
    told = f"plan: packed trials run under CUDA MPS ({why}), each with its part of the GPU"
    assert lines == ([] if why is None else [told])


@pytest.mark.parametrize(
    ("sizes", "budget", "members"),
    [
        ([1024], None, None),
        ([1024], 2.0, None),
        ([1024], 0.25, 128),
        ([1024], 1e-4, 8),
        ([256] * 4, 0.25, 32),
        ([1004, *[2] * 10], 0.25, (256 - 20) // 2),  # its few odd ones make the large one no narrower
    ],
)
def test_two_arrays_of_each_group_fit_into_a_time_budget(
    sizes: list[int], budget: float | None, members: int | None
) -> None:
    """budget: as a multiple of the predicted time."""
    wanted = config(mode="fused").model_copy(update={"trials": 1024})
    groups = [
        Group(Signature((("hidden", str(number)),)), [Trial(Trial.name(i), i, {}) for i in range(size)])
        for number, size in enumerate(sizes)
    ]
    measured = estimates(process={1: 100}, fused={1: 90, 64: 25_000})
    whole_s = decide(SIMULATED, wanted, 1024, groups, "fused", measured).options[0].wall_s
    limited = wanted.model_copy(update={"time_budget_s": None if budget is None else budget * whole_s})
    decision = decide(SIMULATED, limited, 1024, groups, "fused", measured)
    assert decision.mode == "fused"
    assert isinstance(decision.plan, ArrayPlan)
    assert decision.plan.members == members
    said = [line for line in decision_lines(decision, limited, SIMULATED, drawn=True) if "the sweep ends" in line]
    ends = "at the latest" if budget == 2.0 else "before its last trials"
    assert [ends in line for line in said] == ([True] if budget is not None else [])


class Told:
    """In place of a Measurer: what is kept, and what a probe finds."""

    def __init__(self, *, unknown: bool) -> None:
        self.unknown = unknown
        self.probes = 0

    def kept(self, hardware: Hardware) -> tuple[Estimates, bool]:
        return Estimates() if self.unknown else SLOWER, self.unknown

    def probe(self, cluster: Any, hardware: Hardware) -> Estimates:
        self.probes += 1
        return SLOWER


def planned(measurer: Any, monkeypatch: pytest.MonkeyPatch, **cluster: Any) -> tuple[Planner, list[str]]:
    said: list[str] = []
    monkeypatch.setattr("raygpu.workflow.planner.cluster_hardware", lambda cluster: ON_CARD)
    wanted = config().model_copy(update={"cluster": SweepClusterSection(**cluster)})
    return Planner(wanted, 32, Grouped(GROUPS, None, drawn=True), measurer, said.extend), said


def test_what_is_known_is_planned_before_there_is_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    planner, said = planned(Told(unknown=False), monkeypatch)
    planner.ahead(ON_CARD)
    told = list(said)
    assert told
    cluster: Any = None
    decision = planner.on(cluster)
    assert isinstance(decision, Decision)
    assert said == told, "it is said once"


def test_what_is_not_known_is_measured_on_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = Told(unknown=True)
    planner, said = planned(measurer, monkeypatch)
    planner.ahead(ON_CARD)
    assert not said
    cluster: Any = SimpleNamespace(gpus_in_use=lambda: 0.0)
    decision = planner.on(cluster)
    assert measurer.probes == 1
    assert said[0] == "plan: measuring which way is fastest here"
    assert said[1:] == decision_lines(decision, config(), ON_CARD, drawn=True)


@pytest.mark.parametrize(
    ("max_gpus", "in_use", "why"),
    [(0.5, 0.0, "0.5 of 1 GPUs are for this sweep; raygpu pack measures"), (None, 0.25, "and use 0.25 now")],
)
def test_nothing_is_measured_on_a_gpu_that_others_may_use(
    max_gpus: float | None, in_use: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A profile that was measured beside another training would be kept, and decide on later sweeps too."""
    measurer = Told(unknown=True)
    planner, said = planned(measurer, monkeypatch, max_gpus=max_gpus)
    planner.ahead(ON_CARD)
    cluster: Any = SimpleNamespace(gpus_in_use=lambda: in_use)
    planner.on(cluster)
    assert measurer.probes == 0
    assert any("not measured: other commands may use the GPUs meanwhile" in line and why in line for line in said)


def test_a_dry_run_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    measurer = Told(unknown=True)
    planner, said = planned(measurer, monkeypatch)
    planner.ahead(ON_CARD, dry=True)
    assert said[-1] == "plan: the sweep itself would first measure which way is fastest here"
    assert measurer.probes == 0


def test_a_resumed_sweep_keeps_mps() -> None:
    under = decide(ON_CARD, config(), 32, GROUPS, None, FASTER)
    assert under.settled(config().gpu)["mps"] == "on"
    assert decide(ON_CARD, config(), 32, GROUPS, None, SLOWER).settled(config().gpu)["mps"] == "off"


def test_who_asks_for_mps_gets_what_was_measured_under_it() -> None:
    plan = decide(ON_CARD, config(mps="on"), 32, GROUPS, None, SLOWER).plan
    assert plan.as_dict()["trials_per_gpu"] == 2
    assert SLOWER.reference is not None
    full = Point("mps", 2, fault="out of memory")
    ended = replace(SLOWER.reference, points=(*SLOWER.reference.of("process"), full))
    decision = decide(ON_CARD, config(mps="on"), 32, GROUPS, None, Estimates(reference=ended))
    assert "2 at once in processes" in decision.predicted["wall_s"], "where no number under MPS has a speed"
    many = decide(ON_CARD, config(mps="on", fraction=0.01), 100, GROUPS, None, Estimates()).plan
    assert many.as_dict()["trials_per_gpu"] == 48, "MPS serves no more"


def test_workers_are_told_what_one_more_training_needs() -> None:
    assert decide(ON_CARD, config(), 32, GROUPS, None, FASTER).needs() == {}, "a rough estimate is no profile"
    assert FASTER.reference is not None
    measured = replace(FASTER, reference=replace(FASTER.reference, measured_at="2026-11-01"))
    decision = decide(ON_CARD, config(), 32, GROUPS, None, measured)
    (device,) = {device for device, _ in decision.needs()}
    assert device == ON_CARD.nodes[0].device_type
    assert decision.needs()[device, False].way == "mps"
    assert decision.needs()[device, False].most == 3
    asked = decide(ON_CARD, config(mps="off", fraction=0.5), 32, GROUPS, None, Estimates(kept=measured.reference))
    assert asked.needs()[device, False].way == "process", "a kept profile counts where nothing was to be chosen"


@pytest.mark.parametrize(
    ("written", "meant"),
    [(0.33, Fraction(1, 3)), (0.66, Fraction(2, 3)), (0.2, Fraction(1, 5)), (2, Fraction(2)), (2.5, Fraction(5, 2)),
     (0.05, Fraction(1, 20)), (0.999, Fraction(1)), (1e-3, Fraction(1, 1000))],
)  # fmt: skip
def test_a_rounded_fraction_means_the_simplest_one(written: float, meant: Fraction) -> None:
    found = ClusterSection(max_gpus=written).most_gpus
    assert found is not None
    assert abs(found - meant) <= meant * Fraction(2, 100)
    assert found.denominator <= meant.denominator
    assert ClusterSection().most_gpus is None


def test_a_plan_stays_within_what_the_run_may_reserve() -> None:
    shared = config(mode="process").model_copy(update={"cluster": SweepClusterSection(max_gpus=0.5)})
    found = decide(ON_CARD, shared, 32, GROUPS, None, Estimates())
    assert isinstance(found.plan, Plan)
    assert found.plan.slots * found.plan.parts[0].share.part <= Fraction(1, 2)
    fused = config(mode="fused").model_copy(update={"cluster": SweepClusterSection(max_gpus=0.5)})
    (usual,) = make_fused_plan([CARD], config(mode="fused"), 32).arrays.parts
    assert (usual.share.trials_per_gpu, usual.reason) == (1, WHOLE_GPU)
    both = make_fused_plan([CARD], fused, 32)
    assert (both.arrays.parts[0].share.trials_per_gpu, both.arrays.slots) == (2, 1)
    whole = config(mode="process", fraction=1.0).model_copy(update={"cluster": SweepClusterSection(max_gpus=0.5)})
    with pytest.raises(BadInput, match=r"gpu.fraction: read 1.0; a trial takes 1 of a GPU, and cluster.max_gpus"):
        decide(ON_CARD, whole, 32, GROUPS, None, Estimates())
