"""A job's command that ends without having been asked to; no Slurm is there."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.records import slurm_job
from raygpu.records.slurm_job import SlurmJob
from raygpu.workflow import slurm_run
from raygpu.workflow.slurm_course import INTERRUPTED
from raygpu.workflow.slurm_run import Driver
from tests.slurm_jobs import within_job


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Return the driver of job number 7 on this machine."""
    folder = within_job(tmp_path, monkeypatch)
    SlurmJob("sweep-night", "sweep", "7", str(folder), 0.0, script="runs/night/slurm/job.sh").write()
    return Driver(folder, "sweep", [], 0)


class Ended:
    """A command that ends with this status, or once it is interrupted."""

    def __init__(self, status: int | None) -> None:
        self.returncode = status or 0
        self.has_ended = status is not None

    def __call__(self, *words: object, **options: object) -> Ended:
        return self

    def poll(self) -> int | None:
        return self.returncode if self.has_ended else None

    def send_signal(self, number: int) -> None:
        assert number == signal.SIGINT
        self.returncode, self.has_ended = INTERRUPTED, True


def test_a_command_that_is_killed_by_the_system_is_told(
    started: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_run.subprocess, "Popen", Ended(-signal.SIGKILL))
    monkeypatch.setattr(started, "_notice", lambda: None)
    assert started._end(started._command({}, [], None)) == 9
    line = (
        "sweep was killed by signal 9 (out of memory?); a larger slurm.mem may help; it goes on by:"
        " sbatch runs/night/slurm/job.sh"
    )
    assert line in capsys.readouterr().out.splitlines()
    assert (started.job.exit_code, started.job.message) == (9, line)


@pytest.mark.parametrize("is_preempted", [False, True])
def test_a_node_whose_ray_does_not_start_ends_the_job(
    is_preempted: bool, started: Driver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started.place.ray_folder.mkdir()
    (started.place.ray_folder / slurm_run.NODES_LOG).write_text("no route to the head\n")
    ray: Any = SimpleNamespace(lost=True, start_fault="no route to the head")
    monkeypatch.setattr(slurm_run.subprocess, "Popen", Ended(None))
    shown = {"PreemptTime": "2026-11-27T19:51:39"} if is_preempted else {"PreemptTime": "None"}
    monkeypatch.setattr(slurm_run.commands, "shown", lambda number: shown)
    monkeypatch.setattr(slurm_run, "LOOK_S", 0.0)
    monkeypatch.setattr(slurm_run, "ASK_S", 0.01)
    exit_code = started._command({}, [], ray)
    assert (started.cause, exit_code) == (("preempted", INTERRUPTED) if is_preempted else (None, 1))
    started._end(exit_code)
    assert (started.folder / slurm_job.NODES_LOG).read_text() == "no route to the head\n"
    assert not started.place.ray_folder.exists()
    output = capsys.readouterr().out
    assert ("no route to the head" in output) == ("Ray did not start on all of n1" in output) == (not is_preempted)
