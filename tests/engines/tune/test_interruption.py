"""Ctrl-C of a sweep: what the trials have done by then is done."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.engines.tune import interruption
from raygpu.records.run_directory import RunDirectory

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def config(sweep_config: Any, tmp_path: Path) -> Any:
    space = {"x": {"grid_search": [1, 2]}, "driver": os.getpid(), "folder": str(tmp_path)}
    grid: dict[str, Any] = {"experiment": "tests.cases:counts_its_epochs", "trials": None, "gpu": {"fraction": 0.5}}
    grid |= {"search": {"algorithm": "grid"}, "checkpoint_s": 600.0, "tracking": {"enabled": False}}
    return lambda pause_s: sweep_config(**grid, space=space | {"pause_s": pause_s})


def epochs(folder: Path, trial: int) -> list[int]:
    return [int(line) for line in (folder / f"epochs-{trial}").read_text().split()]


def test_every_running_trial_saves_a_checkpoint_first(config: Any, tmp_path: Path) -> None:
    shown = io.StringIO()
    stopped = sweep.run(config(1.0), console=SweepConsole(stream=shown))
    assert stopped.interrupted
    assert stopped.folder is not None
    assert "stopping after a checkpoint of each running trial" in shown.getvalue()
    assert 0 < len(epochs(tmp_path, 1)) < 8
    folder = RunDirectory.existing(stopped.folder)
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert resumed.summary["completed"] == 2
    assert epochs(tmp_path, 1) == list(range(1, 9)), "no epoch was trained again"
    assert epochs(tmp_path, 2) == list(range(1, 9))


@pytest.mark.slow
def test_a_trial_whose_epoch_takes_longer_is_not_waited_for(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "PATIENCE_S", 1.0)
    stopped = sweep.run(config(4.0), console=SweepConsole(stream=io.StringIO()))
    assert stopped.interrupted
    assert 3 <= len(epochs(tmp_path, 1)) <= 4
