"""gpu.mode and gpu.fraction auto: a probe inside the sweep, a kept profile, and neither where neither repays."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.engines.profiling.measurer import Measurer, QuickLook
from raygpu.planning import plausibility
from raygpu.planning.profiles import Point
from raygpu.records.profile_store import ProfileStore
from raygpu.records.run_directory import RunDirectory
from raygpu.sweep import SweepResult

pytestmark = pytest.mark.timeout(900)


def run(config: SweepConfig, **options: Any) -> tuple[SweepResult, str]:
    """The result, and what a person saw."""
    shown = io.StringIO()
    return sweep.run(config, console=SweepConsole(stream=shown), **options), shown.getvalue()


def planned(config: SweepConfig) -> str:
    """What a person sees of a dry run, which starts no Ray."""
    return run(config, dry_run=True)[1]


POINTS = [
    Point("process", 1, 10_000.0, 1.0, evaluation_s=0.0),
    Point("process", 2, 20_000.0, 2.0, evaluation_s=0.0),
    Point("fused", 16, 80_000.0, 8.0, evaluation_s=0.0),
]
"""Of a small network on two CPUs."""


def configuration(folder: Path, **values: Any) -> SweepConfig:
    """Of a small sweep in mode auto that writes below `folder`."""
    defaults: dict[str, Any] = {
        "name": "test",
        "experiment": "tests.fused_cases:Small",
        "trials": 8,
        "epochs": 2,
        "metric": "accuracy",
        "space": {"lr": {"loguniform": [1e-2, 0.5]}, "hidden": 16},
        "runs_dir": str(folder / "runs"),
        "profiles": str(folder / "profiles"),
        "tracking": {"enabled": False},
    }
    return SweepConfig.model_validate(defaults | values)


@pytest.fixture
def config(tmp_path: Path) -> Callable[..., SweepConfig]:
    def make(**values: Any) -> SweepConfig:
        return configuration(tmp_path, **values)

    return make


def take_for_long(patch: pytest.MonkeyPatch) -> None:
    """Take every sweep for one of hours, which repays a probe; a busy machine's spread is tested elsewhere."""
    patch.setattr(Measurer, "_look", lambda measurer, hardware: QuickLook(1e4))
    for bound in ("WIDE", "WIDEST", "AGREES", "TOLERANCE", "ONCE"):
        patch.setattr(plausibility, bound, 1e9)
    patch.setattr("raygpu.engines.profiling.sweep_probe.BUDGET", 1e4)
    patch.setattr("raygpu.engines.profiling.sweep_probe.WINDOW_S", 0.05)  # exact times are asserted nowhere here


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> None:
    take_for_long(monkeypatch)


@pytest.fixture(scope="module")
def probed(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepResult, str, Path]:
    """A sweep that probed: its result, what was shown, and the folder of the profile that it kept."""
    folder = tmp_path_factory.mktemp("probed")
    with pytest.MonkeyPatch.context() as patch:
        take_for_long(patch)
        result, shown = run(configuration(folder, cluster={"address": ray_address}))
    return result, shown, folder / "profiles"


@pytest.fixture
def kept(probed: tuple[SweepResult, str, Path], tmp_path: Path) -> Path:
    """The profile that a probe has kept below tmp_path, with points that no busy machine has put in doubt."""
    shutil.copytree(probed[2], tmp_path / "profiles")
    store = ProfileStore(tmp_path / "profiles")
    (profile,) = store.all()
    return store.keep(replace(profile, points=tuple(POINTS), notes=()))


def test_a_probe_chooses_the_way_and_is_kept(probed: tuple[SweepResult, str, Path]) -> None:
    result, shown, folder = probed
    assert "measuring which way is fastest here" in shown
    predicted = result.summary["predicted"]
    assert predicted["probe_s"] > 0
    assert set(predicted["wall_s"]) == set(predicted["memory_gib"]) >= {"one at a time", "fused"}
    assert predicted["chosen"] == min(predicted["wall_s"], key=predicted["wall_s"].get)
    assert result.summary["mode"] == ("fused" if predicted["chosen"] == "fused" else "process")
    assert result.summary["completed"] == 8
    (profile,) = ProfileStore(folder).all()
    assert profile.subject.hyperparameters["hidden"] == "16"
    assert {point.way for point in profile.points} == {"process", "fused"}


def test_a_resumed_sweep_goes_on_as_it_began(probed: tuple[SweepResult, str, Path]) -> None:
    result, _, _ = probed
    assert result.folder is not None
    settled = RunDirectory.existing(result.folder).read_config().gpu
    assert settled.mode == result.summary["mode"]
    if settled.mode == "process":
        assert settled.fraction == result.summary["plan"]["fraction"]


@pytest.mark.usefixtures("long")
def test_a_kept_profile_is_used_again(config: Any, kept: Path) -> None:
    measured_at = json.loads(kept.read_text())["measured_at"]
    shown = planned(config())
    assert "measuring" not in shown
    assert f"by a kept profile of {measured_at[:10]}: " in shown


@pytest.mark.usefixtures("long")
def test_a_changed_version_passes_a_profile_over(config: Any, kept: Path) -> None:
    values = json.loads(kept.read_text())
    values["subject"]["versions"]["torch"] = "1.0"
    kept.write_text(json.dumps(values))
    assert "the sweep itself would first measure which way is fastest here" in planned(config())


@pytest.mark.usefixtures("long")
def test_a_profile_of_other_ways_hides_none(config: Any, kept: Path) -> None:
    values = json.loads(kept.read_text())
    values["points"] = [point for point in values["points"] if point["way"] == "process"]
    kept.write_text(json.dumps(values))
    assert "by a kept profile" in planned(config(gpu={"mode": "process"}))
    assert "the sweep itself would first measure which way is fastest here" in planned(config())


def test_a_short_sweep_is_planned_by_a_few_steps(config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Long enough for a look, too short for a probe: the trainings' own speed is not what is tested.
    monkeypatch.setattr("raygpu.training.quick_estimate.QuickEstimate.samples_per_s", lambda *_: 10_000.0)
    monkeypatch.setattr("raygpu.training.quick_estimate.QuickEstimate.points", lambda *_: POINTS)
    shown = planned(config(trials=16, epochs=40))
    assert "plan: predicted time of the trials, by a few steps here, as the sweep is short (about " in shown
    assert "plan: fused mode" in shown
    assert "plan: the sweep itself times a few steps again, and may choose another way" in shown
    assert not list((tmp_path / "profiles").glob("*")), "too rough to be kept"


def test_a_sweep_of_seconds_is_not_measured(config: Any, tmp_path: Path) -> None:
    assert "plan: not measured: the sweep is short" in planned(config())
    assert not list((tmp_path / "profiles").glob("*"))


@pytest.mark.usefixtures("long")
def test_a_fraction_that_is_asked_for_is_kept_to(config: Any) -> None:
    shown = planned(config(gpu={"fraction": 0.5, "mode": "process"}))
    assert "plan: process mode, 2 per GPU" in shown
    assert "measure" not in shown, "nothing was left to be measured"


@pytest.mark.slow
@pytest.mark.usefixtures("long")
def test_a_training_that_fails_is_no_reason_to_end_the_sweep(config: Any, ray_address: str) -> None:
    failing = {"experiment": "tests.fused_cases:Failing", "trials": 2, "cluster": {"address": ray_address}}
    result, _ = run(config(**failing))
    assert result.summary["failed"] == 2
    assert result.exit_code == 1
