"""Ctrl-C of a sweep: what the trials have done by then is done, and nothing was open to the network."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.engines.tune import interruption
from raygpu.records.interrupts import Interrupts
from raygpu.records.run_directory import RunDirectory
from tests.processes import LOOPBACK, as_users_have_it, listeners, terminate_all

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def config(sweep_config: Any, tmp_path: Path) -> Any:
    space = {"x": {"grid_search": [1, 2]}, "driver": os.getpid(), "folder": str(tmp_path)}
    grid: dict[str, Any] = {"experiment": "tests.cases:counts_its_epochs", "trials": None, "gpu": {"fraction": 0.5}}
    grid |= {"search": {"algorithm": "grid"}, "checkpoint_s": 600.0, "tracking": {"enabled": False}}
    return lambda pause_s: sweep_config(**grid, space=space | {"pause_s": pause_s})


def epochs(folder: Path, trial: int) -> list[int]:
    return [int(line) for line in (folder / f"epochs-{trial}").read_text().split()]


def test_every_running_trial_saves_a_checkpoint_first_and_begins_anew_where_that_is_lost(
    config: Any, tmp_path: Path
) -> None:
    shown = io.StringIO()
    stopped = sweep.run(config(1.0), console=SweepConsole(stream=shown))
    assert stopped.interrupted
    assert stopped.folder is not None
    assert "stopping after a checkpoint of each running trial" in shown.getvalue()
    assert 0 < len(epochs(tmp_path, 1)) < 8
    before = tmp_path / "before"
    shutil.copytree(stopped.folder, before, symlinks=True)
    folder = RunDirectory.existing(stopped.folder)
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert resumed.summary["completed"] == 2
    assert epochs(tmp_path, 1) == list(range(1, 9)), "no epoch was trained again"
    assert epochs(tmp_path, 2) == list(range(1, 9))

    shutil.rmtree(stopped.folder)
    before.rename(stopped.folder)
    first, *others = sorted(stopped.folder.glob("tune/t000?_*/checkpoint_*"))  # on a busy machine of one trial alone
    shutil.rmtree(first)
    for other in others:
        (other / "progress.json").write_text("{")
    folder, shown = RunDirectory.existing(stopped.folder), io.StringIO()
    resumed = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=shown))
    assert resumed.summary["completed"] == 2
    assert all(epochs(tmp_path, trial)[8:] == list(range(1, 9)) for trial in (1, 2)), "whole, once more"
    assert shown.getvalue().count("begins anew: its checkpoint cannot be read") == 1 + len(others)


@pytest.mark.slow
def test_a_trial_whose_epoch_takes_longer_is_not_waited_for(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "PATIENCE_S", 1.0)
    stopped = sweep.run(config(4.0), console=SweepConsole(stream=io.StringIO()))
    assert stopped.interrupted
    assert 3 <= len(epochs(tmp_path, 1)) <= 4


def test_a_sweep_in_a_thread_that_ends_early_leaves_the_process_alone(
    sweep_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal of Tune's would end it: Tune handles it in the main thread alone."""
    signals: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: signals.append(number))
    config = sweep_config(
        experiment="tests.cases:behave", trials=9, space={"kind": "raises", "x": 1}, tracking={"enabled": False}
    )
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(sweep.run(config, console=SweepConsole(stream=io.StringIO())))
    )
    try:
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    (result,) = results
    assert not signals
    assert result.summary["common_failure"] is not None
    assert result.exit_code == 1


def test_a_sweep_whose_raylet_is_lost_ends_with_its_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray ends the process ten seconds after its raylet, with status 1 and no way on."""
    raylet, warned, left = psutil.Popen(["true"]), list[str](), list[dict[str, str]]()
    monkeypatch.setattr(interruption.ray_private_api, "servers", lambda: {"raylet": raylet})
    over = threading.Event()

    def leave(checkpoints: dict[str, str]) -> None:
        left.append(checkpoints)
        over.set()

    live: Any = SimpleNamespace(
        interrupts=Interrupts(), checkpoints=SimpleNamespace(own={"t0000": "c"}), warn=warned.append, leave=leave
    )
    raylet.wait()
    interruption._watch_ray(live, over)
    assert left == [{"t0000": "c"}]
    assert warned == ["Ray's raylet was ended by others; running trials go on from their last checkpoints"]


CASE = """
experiment = "tests.cases:counts_its_epochs"
metric = "score"
checkpoint_s = 600
[search]
algorithm = "grid"
[gpu]
fraction = 0.5
[space]
x = {{ grid_search = [1, 2] }}
pause_s = 1.0
driver = 0
folder = "{folder}"
[tracking]
enabled = false
"""


@pytest.mark.slow
@pytest.mark.parametrize("whom", ["group", "all", "raylet", "gcs_server"])
def test_a_signal_to_more_than_the_command_leaves_its_results(whom: str, tmp_path: Path) -> None:
    """SIGTERM to its process group, as `timeout` sends it, and to Ray's processes too, as systemd does; SIGKILL to the
    raylet or the head alone, as a host without memory sends it.

    Until then, each listener of the sweep is on loopback.
    """
    (tmp_path / "case.toml").write_text(CASE.format(folder=tmp_path))
    (tmp_path / "interrupted").touch()  # by this test alone
    command = [sys.executable, "-m", "raygpu.sweep", "case.toml", "--name", "t", "--runs-dir", "runs"]
    environment = {**as_users_have_it(), "PYTHONPATH": str(Path.cwd())}
    listening = set[tuple[str, str]]()
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        while not all((tmp_path / f"epochs-{x}").exists() and len(epochs(tmp_path, x)) >= 3 for x in (1, 2)):
            assert process.poll() is None
            listening |= listeners(process.pid)
            time.sleep(0.2)
        if whom == "group":
            os.killpg(process.pid, signal.SIGTERM)
        elif whom != "all":
            next(each for each in psutil.Process(process.pid).children() if each.name() == whom).kill()
        else:
            terminate_all(process)
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130, out  # Ray itself gives up after a minute, with another one
    assert "interrupted; go on with: python -m raygpu.sweep --resume " in out
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    assert not {(name, address) for name, address in listening if address not in LOOPBACK}
    summary = json.loads((tmp_path / "runs" / "t" / "summary.json").read_text())
    assert (summary["failed"], summary["interrupted"]) == (0, 2)
    assert summary["best"]["epoch"] >= 2
