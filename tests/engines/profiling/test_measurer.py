"""What a sweep comes to, and what is known of it before it is planned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.config.source import locate
from raygpu.engines.profiling.measurer import Measurer, QuickLook
from raygpu.engines.profiling.profile_key import subject, versions_of
from raygpu.engines.profiling.workload import Workload
from raygpu.planning.estimates import Estimates, Hardware, roughly, size
from raygpu.planning.gpu_shares import Node
from raygpu.planning.profiles import Point, Profile, Subject
from raygpu.planning.schedule import WORKER_S
from raygpu.planning.step_cost import FLOP_PER_S, LAUNCH_S, StepCost
from raygpu.search.signature import ITS_OWN, Group, Signature
from raygpu.search.trials import Trial
from tests.models import few


def config(**values: Any) -> SweepConfig:
    return SweepConfig.model_validate({"experiment": "a:B", "trials": 60, "epochs": 27, **values})


def test_every_trial_at_once_unless_it_is_optuna() -> None:
    assert size(config()).at_once == 60
    assert size(config(search={"algorithm": "tpe", "generation": 8})).at_once == 8
    assert [size(config(search={"algorithm": "tpe"})).of(way) for way in ("process", "fused", "split")] == [60, 8, 8]
    half = size(config(search={"algorithm": "tpe", "generation": 8}), 0.5)
    assert (half.trials, half.at_once, half.members) == (30, 4, 4)


def test_trials_that_stop_early_are_shorter() -> None:
    stopped = size(config(stopping={"algorithm": "halving", "grace_epochs": 1, "reduction": 3}))
    assert stopped.epochs == pytest.approx(1 + 2 / 3 + 6 / 9 + 18 / 27)


def test_groups_without_a_profile_are_taken_for_the_largest() -> None:
    def profile(rate: float) -> Profile:
        return Profile(Subject("a:B", {}, "", "float32", "", None, 2, {}), 100, (Point("process", 1, rate, 1.0),))

    first, second = Signature((("hidden", "1"),)), Signature((("hidden", "2"),))
    groups = [Group(first, [Trial("a", 0, {})] * 2), Group(second, [Trial("b", 0, {})] * 4, "its own")]
    parts = Estimates({second: profile(2)}, profile(1)).parts(groups, config())
    assert [part.profile.points[0].samples_per_s for part in parts] == [1, 2]
    assert [part.size.trials for part in parts] == [20, 40], "of an Optuna search a generation stands for all"
    assert [part.fusable for part in parts] == [True, False]


def test_points_in_doubt_choose_a_way_at_what_their_windows_measured() -> None:
    """A gain that is not believed is not used, but which way is fastest is seen on a busy machine too."""
    wrong = Point("fused", 8, 120e3, 16.9, gain_low=8.0, gain_high=30.0, doubt="its own windows measured less")
    points = (Point("process", 1, 40e3, 1.0), wrong, Point("fused", 64, fault="out of memory"))
    rough = roughly(Profile(Subject("a:B", {}, "", "float32", "", None, 2, {}), 100, points))
    assert [(p.n, p.gain, p.doubt) for p in rough.of("fused")] == [(8, 3.0, None), (64, None, None)]
    best = rough.best()
    assert best is not None
    assert best.n == 8


def test_the_profiles_of_each_type_of_unequal_gpus_are_found(tmp_path: Path) -> None:
    """A profile's key has rounded memory, and NVML's is no round number."""
    group = Group(Signature((("hidden", "1"),)), [Trial("t0000", 0, {"hidden": 1})])
    source, code = locate("tests.pack_functions:steady", Path(__file__).parents[3])
    measurer = Measurer(config(profiles=str(tmp_path)), source, code, None, [group])
    nodes = [Node(4, 1, 32.0, "A", 79.6470703), Node(4, 1, 32.0, "B", 23.5693359)]
    hardware = Hardware(nodes, ["A", "B"], "A", 79.6470703, 4)
    for rate, node in enumerate(nodes, 1):
        there = Hardware([node], [node.device], node.device, node.device_gib, 4)
        workload = Workload(source, None, group.trials[0], "float32")
        key = subject(workload, versions_of(source, code), group.signature, there)
        measurer.store.keep(Profile(key, 100, (Point("process", 1, float(rate), 1.0),)))
    found, _ = measurer.kept(hardware)
    assert {device: each.points[0].samples_per_s for device, each in found.by_device.items()} == {
        nodes[0].device_type: 1.0,
        nodes[1].device_type: 2.0,
    }


ROUGH = Profile(Subject("a:B", {}, "", "float32", "cpu", None, 2, {}), 100, (Point("process", 1, 40e3, 1.0),))


@pytest.mark.parametrize(
    ("time_budget_s", "rough", "is_due"),
    [(None, None, True), (20.0, None, False), (100.0, None, True), (100.0, ROUGH, False), (3600.0, ROUGH, True)],
)
def test_a_probe_has_to_repay_within_the_time_budget(
    time_budget_s: float | None,
    rough: Profile | None,
    is_due: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4, rough))
    source, code = locate("tests.models:Mlp", Path(__file__).parents[3])
    trials = [Trial(Trial.name(number), number, {"hidden": 4}) for number in range(2)]
    wanted = config(profiles=str(tmp_path), time_budget_s=time_budget_s)
    measurer = Measurer(wanted, source, code, few(), [Group(Signature((("hidden", "4"),)), trials)])
    found, due = measurer.kept(Hardware([Node(2, 1, 8.0, "cpu")], ["cpu"], "cpu", None, 2))
    assert due == is_due
    assert found.source.endswith("" if is_due else f"the sweep is short (about {time_budget_s:.0f} s)")


@pytest.mark.parametrize(("time_budget_s", "is_predicted"), [(None, False), (60.0, True)])
def test_a_time_budget_has_the_time_of_arrays_predicted_where_the_mode_is_fixed(
    time_budget_s: float | None, is_predicted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4, ROUGH))
    source, code = locate("tests.models:Mlp", Path(__file__).parents[3])
    trials = [Trial(Trial.name(number), number, {"hidden": 4}) for number in range(2)]
    wanted = config(profiles=str(tmp_path), time_budget_s=time_budget_s, gpu={"mode": "fused"})
    measurer = Measurer(wanted, source, code, few(), [Group(Signature((("hidden", "4"),)), trials)])
    found, due = measurer.kept(Hardware([Node(2, 1, 8.0, "cpu")], ["cpu"], "cpu", None, 2))
    assert not due
    assert (found.reference is ROUGH, found.source) == (is_predicted, "few steps here" if is_predicted else "")


@pytest.mark.parametrize(
    ("reason", "told"),
    [(ITS_OWN, "every trial is another program"), ("ValueError: no such layer", "ValueError: no such layer")],
)
def test_the_line_on_trials_of_which_no_two_are_alike_has_their_fault(reason: str, told: str, tmp_path: Path) -> None:
    source, code = locate("tests.models:Mlp", Path(__file__).parents[3])
    groups = [
        Group(Signature((("hidden", repr(each)),)), [Trial(Trial.name(each), each, {"hidden": each})], reason)
        for each in (1, 2)
    ]
    measurer = Measurer(config(profiles=str(tmp_path)), source, code, few(), groups)
    found, due = measurer.kept(Hardware([Node(2, 1, 8.0, "cpu")], ["cpu"], "cpu", None, 2))
    assert (found.source, due) == (told, False)


CARD = Hardware([Node(16, 1, 100.0, "card", 80.0)], ["card"], "card", 80.0, 16)
CPU = Hardware([Node(2, 1, 8.0, "cpu")], ["cpu"], "cpu", None, 2)


def measurer_of(trials: int, signatures: int, folder: Path, **values: Any) -> Measurer:
    """Return the measurer of a sweep of tests.models:Mlp, its trials in equal groups."""
    source, code = locate("tests.models:Mlp", Path(__file__).parents[3])
    groups = [
        Group(
            Signature((("hidden", repr(group)),)),
            [Trial(Trial.name(i), i, {"hidden": group}) for i in range(group, trials, signatures)],
        )
        for group in range(signatures)
    ]
    return Measurer(config(profiles=str(folder), trials=trials, **values), source, code, few(), groups)


def ten_thousand_a_second(monkeypatch: pytest.MonkeyPatch, share_of_arithmetic: float = 0.0) -> None:
    """Let a training be estimated at 10,000 samples/s.

    share_of_arithmetic: time of a step's arithmetic on a GPU, in parts of the step.
    """
    operators = 20
    arithmetic = share_of_arithmetic * operators * LAUNCH_S * FLOP_PER_S["float32"]
    cost = StepCost(10_000 * operators * LAUNCH_S, operators, arithmetic)  # type: ignore[arg-type]
    estimate = "raygpu.training.quick_estimate.QuickEstimate"
    monkeypatch.setattr(f"{estimate}.samples_per_s", lambda *_: 10_000.0)
    monkeypatch.setattr(f"{estimate}.step_cost", lambda *_: cost)


@pytest.mark.parametrize(
    ("hardware", "trials", "signatures", "epochs", "values", "is_due", "in_arrays"),
    [
        (CARD, 64, 1, 20, {}, False, True),
        (CARD, 2000, 1, 20, {}, False, True),
        (CARD, 2, 1, 20000, {}, True, False),
        (CARD, 64, 1, 100_000, {}, True, False),
        (CARD, 64, 32, 1, {}, False, False),  # an array for each two trials takes longer than the trials
        (CARD, 64, 1, 20, {"gpu": {"mode": "process"}}, False, False),
        (CARD, 64, 1, 20, {"gpu": {"width": 1}}, False, False),  # its members step in turn
        (CARD, 64, 1, 100_000, {"time_budget_s": 30.0}, False, False),  # so many at once would end nowhere
        (CPU, 4, 1, 1, {}, False, True),
        (CPU, 1, 1, 1, {}, False, False),
    ],
)
def test_a_sweep_that_is_short_in_arrays_is_not_measured(
    hardware: Hardware,
    trials: int,
    signatures: int,
    epochs: int,
    values: dict[str, Any],
    is_due: bool,
    in_arrays: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of small networks take a GPU as long in an array as alone, so its time is not that of trials in turn."""
    ten_thousand_a_second(monkeypatch)
    found, due = measurer_of(trials, signatures, tmp_path, epochs=epochs, **values).kept(hardware)
    assert (due, found.prefers_arrays) == (is_due, in_arrays)
    assert found.reference is None
    assert found.source.endswith("so similar trials train as arrays") == in_arrays


@pytest.mark.parametrize(
    ("share", "epochs", "is_due", "in_arrays"),
    [
        (1 / 8, 120, False, True),
        (1, 120, False, False),  # an array would take half as long again
        (1, 2_000, True, False),
        (1 / 8, 20_000, True, False),
    ],
)
def test_a_network_that_fills_the_gpu_gains_nothing_in_an_array(
    share: float, epochs: int, is_due: bool, in_arrays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_thousand_a_second(monkeypatch, share)
    measurer = measurer_of(8, 1, tmp_path, epochs=epochs)
    found, due = measurer.kept(CARD)
    assert (due, found.prefers_arrays) == (is_due, in_arrays)
    seconds = 8 * epochs * few().num_train / 10_000
    assert measurer._look(CARD).sweep_s == pytest.approx(WORKER_S + seconds * 1.5 * share if share < 1 else seconds)


@pytest.mark.parametrize(("samples_per_s", "is_due"), [(0.0, True), (10_000.0, False), (1_000.0, True)])
def test_trials_whose_step_cannot_be_counted_are_predicted_by_the_cpu(
    samples_per_s: float, is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate = "raygpu.training.quick_estimate.QuickEstimate"
    monkeypatch.setattr(f"{estimate}.step_cost", lambda *_: None)
    monkeypatch.setattr(f"{estimate}.samples_per_s", lambda *_: samples_per_s)
    found, due = measurer_of(64, 1, tmp_path, epochs=20).kept(CARD)
    assert (due, found.prefers_arrays) == (is_due, False)


@pytest.mark.parametrize(("share", "gain"), [(0.0, 8.0), (1.0, 2 / 3)], ids=["launched", "filling"])
def test_reading_does_not_count_as_room_for_more_members(
    share: float, gain: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where training waits for its samples, it is slower than its steps, alone and in arrays."""
    ten_thousand_a_second(monkeypatch, share)
    monkeypatch.setattr("raygpu.training.quick_estimate.QuickEstimate.samples_per_s", lambda *_: 1_000.0)
    monkeypatch.setattr("raygpu.engines.profiling.measurer.reads_later", lambda _: True)
    measurer = measurer_of(8, 1, tmp_path, epochs=12)
    seconds = 8 * 12 * few().num_train / 1_000
    wanted = WORKER_S + seconds / gain if gain > 1 else seconds
    assert measurer._look(CARD).sweep_s == pytest.approx(wanted)


def test_trials_that_cannot_be_fused_count_at_the_speed_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ten_thousand_a_second(monkeypatch)
    for reason, seconds in ((None, 4 + 800 / 32), ("it draws by its values", 4 + 400 / 32 + 400)):
        measurer = measurer_of(64, 2, tmp_path, epochs=800 * 10_000 / 64 / few().num_train)
        measurer.groups[1].reason = reason
        assert measurer._look(CARD).sweep_s == pytest.approx(seconds)


def test_a_profile_without_arrays_does_not_keep_a_short_sweep_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a probe leaves it that has ended with one training's speed."""
    ten_thousand_a_second(monkeypatch)
    measurer = measurer_of(64, 1, tmp_path, epochs=20)
    of_one = Profile(measurer._subject(measurer.largest, CARD), few().num_train, (Point("process", 1, 1e4, 1.0),))
    measurer.store.keep(of_one)
    found, due = measurer.kept(CARD)
    assert (due, found.prefers_arrays, found.reference) == (False, True, None)
    eight = Point("fused", 8, 5e4, 5.0)
    measurer.store.keep(Profile(of_one.subject, of_one.num_train, (*of_one.points, eight)))
    found, due = measurer.kept(CARD)
    assert (due, found.prefers_arrays) == (False, False)
    assert found.reference is not None


class FailingProbe:
    """In place of SweepProbe: one training alone raises."""

    def __init__(self, *_: Any) -> None:
        self.ended_s: dict[str, float] = {}

    def measure(self, ways: Any, work: float) -> Any:
        assert ways == ["process", "fused"]
        return SimpleNamespace(points=[Point("process", 1, fault="ValueError: no metric today")], notes=[])


def test_a_probe_whose_training_fails_ends_no_sweep_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trial shows its own fault."""
    monkeypatch.setattr("raygpu.engines.profiling.measurer.SweepProbe", FailingProbe)
    measurer, cluster = measurer_of(8, 1, tmp_path), SimpleNamespace()
    found = measurer.probe(cluster, CPU)  # type: ignore[arg-type]
    assert found.source == "one training alone failed (ValueError: no metric today)"
    assert (found.reference, found.own, [*measurer.store.all()]) == (None, {}, [])


class BriefProbe(FailingProbe):
    """In place of SweepProbe: one training and an array."""

    def measure(self, ways: Any, work: float) -> Any:
        points = [Point("process", 1, 1e3, 1.0), Point("process", 2, 1e3, 1.0), Point("fused", 8, 9e3, 9.0)]
        return SimpleNamespace(points=points, notes=[])


def test_a_profile_that_cannot_be_kept_ends_no_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.engines.profiling.measurer.SweepProbe", BriefProbe)
    (tmp_path / "profiles").touch()
    found = measurer_of(64, 1, tmp_path / "profiles").probe(SimpleNamespace(), CPU)  # type: ignore[arg-type]
    assert found.reference is not None
    assert found.notes[0] == f"measured in 0 s; not kept: {tmp_path / 'profiles'} cannot be written (File exists)"


def test_a_look_has_at_most_the_time_budget_s_length(tmp_path: Path) -> None:
    """A sweep of hours is not looked at, for it repays a probe; of its first minute a few steps tell enough."""
    source, code = locate("tests.models:Mlp", Path(__file__).parents[3])
    trials = [Trial(Trial.name(number), number, {"hidden": 4}) for number in range(8)]
    hardware = Hardware([Node(2, 1, 8.0, "cpu")], ["cpu"], "cpu", None, 2)
    looks = []
    for time_budget_s in (None, 60.0):
        wanted = config(profiles=str(tmp_path), time_budget_s=time_budget_s).model_copy(update={"trials": 10_000_000})
        measurer = Measurer(wanted, source, code, few(), [Group(Signature((("hidden", "4"),)), trials)])
        looks.append(measurer._look(hardware))
    assert looks[0].rough is None
    assert looks[1].rough is not None
    assert {point.way for point in looks[1].rough.points} >= {"process", "fused"}
