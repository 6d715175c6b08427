"""Presentations of runs, from what their folders keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from raygpu.config import SweepConfig
from raygpu.config.source import Source
from raygpu.records.run_directory import RunDirectory
from raygpu.tracking.presentation import TrialsView
from raygpu.workflow.run_presentation import note_plan, presentation


def config(**values: Any) -> SweepConfig:
    space = {"lr": {"loguniform": [0.1, 1.0]}, "batch_size": 32}
    own = {"experiment": "a:B", "metric": "accuracy", "trials": 4, "epochs": 9, "space": space}
    return SweepConfig.model_validate(own | values)


def folder(path: Path) -> RunDirectory:
    made = RunDirectory(path)
    made.run.write_text(json.dumps({"kind": "sweep"}))
    return made


def test_a_later_process_presents_a_sweep_as_its_own_did(tmp_path: Path) -> None:
    run = folder(tmp_path)
    note_plan(run, config(), Source("torch", "a:B", "."), ["plan: process mode"])
    shown = presentation(config(), RunDirectory(tmp_path), None)
    assert "- process mode" in shown.description
    assert shown.trials == TrialsView("validation/accuracy", True, ["lr"])


def test_the_score_is_named_as_the_trials_runs_have_it(tmp_path: Path) -> None:
    run = folder(tmp_path)
    for source, values, name in (
        (Source("function", "a:b", "."), {}, "accuracy"),
        (Source("torch", "a:B", "."), {"score": "best"}, "best/score"),
        (Source("keras", "a:B", "."), {"metric": "train/loss"}, "train/loss"),
    ):
        note_plan(run, config(**values), source, [])
        shown = presentation(config(**values), run, None)
        assert shown.trials is not None
        assert shown.trials.score == name


def test_a_sweep_of_an_earlier_version_has_no_table(tmp_path: Path) -> None:
    shown = presentation(config(), folder(tmp_path), None)
    assert shown.trials is None
    assert "**Plan**" not in shown.description
