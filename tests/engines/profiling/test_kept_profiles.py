"""Which kept profiles plan a later sweep, and which do not keep it from measuring."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.profiling.measurer import Measurer, QuickLook
from raygpu.planning.profiles import Point, Profile
from tests.engines.profiling.test_measurer import CARD, measurer_of, ten_thousand_a_second
from tests.models import few


def test_a_profile_without_processes_predicts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    measurer = measurer_of(64, 1, tmp_path)
    notes = ("process: not measured: left out",)
    key = measurer._subject(measurer.largest, CARD)
    measurer.store.keep(Profile(key, few().num_train, (Point("fused", 8, 5e4, 5.0),), notes))
    found, due = measurer.kept(CARD)
    assert (due, found.own, found.reference) == (True, {}, None)


@pytest.mark.parametrize(
    ("epochs", "ended_s", "is_due"),
    [(20, {"process": 20.0}, False), (20, {}, True), (20, {"process": 5.0}, True), (100, {"process": 20.0}, True)],
)
def test_what_time_ended_is_measured_again_where_there_is_more_of_it(
    epochs: int, ended_s: dict[Any, float], is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    measurer = measurer_of(64, 1, tmp_path, epochs=epochs)
    points = (Point("process", 1, 1e3, 1.0), Point("process", 2, 1.9e3, 1.9), Point("fused", 8, 4e3, 4.0))
    notes = ("process: 4 at once not tried: a quarter of the sweep's time was over",)
    key = measurer._subject(measurer.largest, CARD)
    measurer.store.keep(Profile(key, few().num_train, points, notes, ended_s=ended_s))
    found, due = measurer.kept(CARD)
    assert due is is_due
    assert (found.reference is None) is is_due, "the earlier probe's numbers decide, as they did in its sweep"


def test_a_probe_that_ended_with_one_training_is_not_repeated_by_the_same_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ten_thousand_a_second(monkeypatch)
    measurer = measurer_of(64, 1, tmp_path, epochs=100_000)
    point = Point("process", 1, 1e6, 1.0)  # what the look took for hours takes minutes
    key = measurer._subject(measurer.largest, CARD)
    ended_s: Any = {"process": 500.0, "fused": 500.0}
    measurer.store.keep(Profile(key, few().num_train, (point,), measured_at="2026-11-01", ended_s=ended_s))
    found, due = measurer.kept(CARD)
    assert (due, found.reference, found.prefers_arrays) == (False, None, True)
    assert found.source.startswith("the sweep is short: a probe of 2026-11-01 ended with one training's speed, so ")


@pytest.mark.parametrize(
    ("synthetic", "values", "source"),
    [
        (True, {}, "kept profile of 2026-11-01, of synthetic data"),
        (True, {"data": {"synthetic": True}}, "kept profile of 2026-11-01"),
        (False, {}, "kept profile of 2026-11-01"),
    ],
)
def test_a_plan_by_made_up_data_says_so(synthetic: bool, values: dict[str, Any], source: str, tmp_path: Path) -> None:
    for mode in ("auto", "fused"):
        measurer = measurer_of(8, 1, tmp_path, gpu={"mode": mode}, time_budget_s=60.0, **values)
        points = (Point("process", 1, 1e3, 1.0), Point("fused", 8, 2e4, 20.0))
        key = measurer._subject(measurer.largest, CARD)
        measurer.store.keep(Profile(key, few().num_train, points, (), "2026-11-01T00", synthetic))
        assert measurer.kept(CARD)[0].source == (source if mode == "auto" else source.replace(" of 2026-11-01", ""))


@pytest.mark.parametrize(("generation", "is_due"), [(64, False), (8, True)])
def test_arrays_hide_processes_only_from_sweeps_with_arrays_as_wide(
    generation: int, is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    search = {"algorithm": "tpe", "generation": generation}
    measurer = measurer_of(64, 1, tmp_path, search=search)
    points = (Point("process", 1, 1e3, 1.0), Point("fused", 8, 4e3, 4.0), Point("fused", 64, 2e4, 20.0))
    notes = ("packed: 8 processes cannot do as much as one array",)
    measurer.store.keep(Profile(measurer._subject(measurer.largest, CARD), few().num_train, points, notes))
    assert measurer.kept(CARD)[1] is is_due


@pytest.mark.parametrize(
    ("reason", "noted", "is_due"),
    [
        ("/tmp/raygpu-mps-1 cannot be used: No space left on device", "its disk is full", False),
        (None, "another raygpu of yours runs MPS on GPU-1", True),
        (None, "its start failed: the MPS daemon does not answer", False),
    ],
)
def test_mps_is_measured_once_it_can_run(
    reason: str | None, noted: str, is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    monkeypatch.setattr("raygpu.engines.profiling.measurer.mps.unavailable", lambda uuid: reason)
    measurer, card = measurer_of(64, 1, tmp_path, gpu={"mode": "process"}), replace(CARD, uuid="GPU-1")
    points = tuple(Point("process", n, 1e3 * n, float(n)) for n in (1, 2, 4, 8))
    notes, now = (f"mps: not measured: no MPS: {noted}; packed trials take turns",), datetime.now(UTC).isoformat()
    measurer.store.keep(Profile(measurer._subject(measurer.largest, card), few().num_train, points, notes, now))
    assert measurer.kept(card)[1] is is_due


@pytest.mark.parametrize("values", [{"gpu": {"mode": "auto", "fraction": 0.25}}, {"gpu": {"mps": "off"}}])
def test_no_way_is_missed_that_no_probe_measures(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    monkeypatch.setattr("raygpu.engines.profiling.measurer.mps.unavailable", lambda uuid: None)
    measurer, card = measurer_of(64, 1, tmp_path, **values), replace(CARD, uuid="GPU-1")
    points = tuple(Point("process", n, 1e3 * n, float(n)) for n in (1, 2, 4, 8))
    key, array = measurer._subject(measurer.largest, card), Point("fused", 8, 9e2, 0.9)
    measurer.store.keep(Profile(key, few().num_train, (*points, array)))
    assert not measurer.kept(card)[1]


class ShortProbe:
    """In place of SweepProbe: time ends it after one training."""

    def __init__(self, *_: Any) -> None:
        self.ended_s = {"process": 9.0, "fused": 9.0}

    def measure(self, ways: Any, work: float) -> Any:
        return SimpleNamespace(points=[Point("process", 1, 1e3, 1.0)], notes=[])


def test_a_probe_adds_to_what_was_measured_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raygpu.engines.profiling.measurer.SweepProbe", ShortProbe)
    measurer = measurer_of(64, 1, tmp_path)
    key, packed = measurer._subject(measurer.largest, CARD), (Point("process", n, 1e3 * n, float(n)) for n in (1, 2, 4))
    measurer.store.keep(Profile(key, few().num_train, (*packed, Point("fused", 8, 9e3, 9.0))))
    found = measurer.probe(SimpleNamespace(), CARD)  # type: ignore[arg-type]
    assert found.reference is not None
    assert {(p.way, p.n) for p in found.reference.points} == {
        ("process", 1),
        ("process", 2),
        ("process", 4),
        ("fused", 8),
    }
    assert found.source == "probe of 0 s"


@pytest.mark.parametrize(("free_gib", "is_due"), [(20.0, False), (79.0, True), (None, True)])
def test_a_sweep_measures_as_far_as_its_device_s_free_memory(
    free_gib: float | None, is_due: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    measurer = measurer_of(64, 1, tmp_path)
    points = tuple(Point("process", n, 1e3 * n, float(n), device_gib=8.0) for n in (1, 2))
    ended = (Point("process", 4, fault="out of memory", free_gib=20.0), Point("fused", 8, 9e2, 0.9))
    measurer.store.keep(Profile(measurer._subject(measurer.largest, CARD), few().num_train, (*points, *ended)))
    nodes = [replace(CARD.nodes[0], free_gib=free_gib)]
    assert measurer.kept(replace(CARD, nodes=nodes))[1] is is_due
