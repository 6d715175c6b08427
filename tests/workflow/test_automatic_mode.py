"""gpu.mode and gpu.fraction auto, whole: a probe inside the sweep, a kept profile, and neither where neither repays."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.engines.profiling.measurer import Measurer, QuickLook
from raygpu.planning import plausibility
from raygpu.planning.profiles import Point
from raygpu.records.profile_store import ProfileStore
from raygpu.records.run_directory import RunDirectory
from raygpu.sweep import Result

pytestmark = pytest.mark.timeout(900)


def run(config: Any, **options: Any) -> tuple[Result, str]:
    """The result, and what a person saw."""
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown), **options), shown.getvalue()


POINTS = [
    Point("process", 1, 10_000.0, 1.0, evaluation_s=0.0),
    Point("process", 2, 20_000.0, 2.0, evaluation_s=0.0),
    Point("fused", 16, 80_000.0, 8.0, evaluation_s=0.0),
]
"""Of a small network on two CPUs."""


@pytest.fixture
def config(sweep_config: Any) -> Any:
    def make(name: str, **values: Any) -> Any:
        defaults: dict[str, Any] = {
            "name": name,
            "experiment": "tests.fused_cases:Small",
            "trials": 8,
            "epochs": 2,
            "metric": "accuracy",
            "space": {"lr": {"loguniform": [1e-2, 0.5]}, "hidden": 16},
            "gpu": {},
            "tracking": {"enabled": False},
        }
        return sweep_config(**(defaults | values))

    return make


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sweep is taken for one of hours, which repays a probe."""
    monkeypatch.setattr(Measurer, "_look", lambda measurer, site: QuickLook(1e4))
    for bound in (
        "WIDE",
        "WIDEST",
        "AGREES",
        "TOLERANCE",
        "ONCE",
    ):  # what a busy machine's spread does is tested elsewhere
        monkeypatch.setattr(plausibility, bound, 1e9)
    monkeypatch.setattr("raygpu.engines.profiling.sweep_probe.BUDGET", 1e4)


@pytest.mark.usefixtures("long")
def test_a_probe_is_kept_and_used_again(config: Any, tmp_path: Path) -> None:
    first, shown = run(config("first"))
    assert "measuring which way is fastest here" in shown
    predicted = first.summary["predicted"]
    assert predicted["probe_s"] > 0
    assert set(predicted["wall_s"]) == set(predicted["memory_gib"]) >= {"one at a time", "fused"}
    assert predicted["chosen"] == min(predicted["wall_s"], key=predicted["wall_s"].get)
    assert first.summary["mode"] == ("fused" if predicted["chosen"] == "fused" else "process")
    assert first.summary["completed"] == 8
    profiles = list(ProfileStore(tmp_path / "profiles").all())
    assert [profile.subject.hyperparameters["hidden"] for profile in profiles] == ["16"]
    assert {point.way for point in profiles[0].points} == {"process", "fused"}

    second, shown = run(config("second"))
    assert "measuring" not in shown
    assert second.summary["predicted"]["probe_s"] is None
    assert second.summary["predicted"]["source"] == f"kept profile of {profiles[0].measured_at[:10]}"
    assert f"predicted, by a kept profile of {profiles[0].measured_at[:10]}: " in shown


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_a_changed_version_discards_a_profile(config: Any, tmp_path: Path) -> None:
    run(config("first"))
    path = next((tmp_path / "profiles").glob("*.json"))
    values = json.loads(path.read_text())
    values["subject"]["versions"]["torch"] = "1.0"
    path.write_text(json.dumps(values))
    second, shown = run(config("second"))
    assert "measuring which way is fastest here" in shown
    assert second.summary["predicted"]["probe_s"] is not None


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_a_profile_of_other_ways_hides_none(config: Any, tmp_path: Path) -> None:
    run(config("processes", gpu={"mode": "process"}))
    (kept,) = ProfileStore(tmp_path / "profiles").all()
    assert {point.way for point in kept.points} == {"process"}
    result, shown = run(config("all"))
    assert "measuring which way is fastest here" in shown
    assert "fused" in result.summary["predicted"]["wall_s"]


@pytest.mark.slow
def test_a_short_sweep_is_planned_by_a_few_steps(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for a look, too short for a probe: the trainings' own speed is not what is tested.
    monkeypatch.setattr("raygpu.training.quick_estimate.QuickEstimate.samples_per_s", lambda *_: 10_000.0)
    monkeypatch.setattr("raygpu.training.quick_estimate.QuickEstimate.points", lambda *_: POINTS)
    result, shown = run(config("short", trials=16, epochs=40))
    assert "plan: predicted, by a few steps here, for the sweep is short (about " in shown
    assert result.summary["predicted"]["chosen"] == "fused" == result.summary["mode"]
    assert not list((tmp_path / "profiles").glob("*")), "too rough to be kept"


def test_a_sweep_of_seconds_is_not_measured(config: Any, tmp_path: Path) -> None:
    result, shown = run(config("short"))
    assert "plan: not measured: the sweep is short" in shown
    assert result.summary["predicted"] == {}
    assert not list((tmp_path / "profiles").glob("*"))


@pytest.mark.usefixtures("long")
def test_a_fraction_that_is_asked_for_is_kept_to(config: Any) -> None:
    result, _ = run(config("asked", gpu={"fraction": 0.25, "mode": "process"}))
    assert result.summary["plan"]["trials_per_gpu"] == 4
    assert result.summary["predicted"] == {}, "nothing was left to be measured"


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_a_training_that_fails_is_no_reason_to_end_the_sweep(config: Any) -> None:
    result, _ = run(config("failing", experiment="tests.fused_cases:Failing"))
    assert result.summary["failed"] == 8
    assert result.exit_code == 1


def test_a_dry_run_says_what_the_sweep_would_do(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    local = {"cluster": {"address": "local"}}
    _, shown = run(config("dry", **local), dry_run=True)
    assert "plan: not measured: the sweep is short" in shown
    monkeypatch.setattr(Measurer, "_look", lambda measurer, site: QuickLook(1e4))
    _, shown = run(config("dry", **local), dry_run=True)
    assert "the sweep itself would first measure which way is fastest here" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_a_resumed_sweep_goes_on_as_it_began(config: Any) -> None:
    result, _ = run(config("first"))
    assert result.folder is not None
    settled = RunDirectory.existing(result.folder).read_config().gpu
    assert settled.mode == result.summary["mode"]
    if settled.mode == "process":
        assert settled.fraction == result.summary["plan"]["fraction"]
