"""Whether a job is queued again, and what its next start runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raygpu.records.run_directory import PROGRESS, TRAINING, RunDirectory
from raygpu.storage import Storage
from raygpu.workflow.slurm_course import Cause, course, progress_of, usage_line, words_to_run


@pytest.mark.parametrize(
    ("cause", "exit_code", "again"),
    [
        ("clock", 130, True),
        ("preempted", 130, True),
        ("preempted", 1, True),  # Ray was ended with it
        ("clock", 0, False),  # done in time
        ("clock", 3, False),  # done; MLflow lacks a part
        ("clock", 2, False),  # bad input is bad input again
        ("told", 130, False),  # Slurm itself says whether it comes again
        ("stopped", 130, False),
        (None, 1, False),
        (None, 0, False),
    ],
)
def test_a_sweep_is_queued_again(cause: Cause | None, exit_code: int, again: bool) -> None:
    assert course("sweep", cause, exit_code, 0, 50, [10.0]).again is again


def test_what_cannot_go_on_is_not_queued_again() -> None:
    found = course("pack", "clock", 130, 0, 50, [0.0])
    assert not found.again
    assert "longer slurm.time" in found.message


def test_there_is_a_limit() -> None:
    assert course("train", "clock", 130, 49, 50, [1.0]).again
    assert "max_restarts" in course("train", "clock", 130, 50, 50, [1.0]).message
    assert "slurm.requeue is false" in course("train", "clock", 130, 0, 0, [1.0]).message


def test_a_run_that_gets_nowhere_is_not_queued_for_ever() -> None:
    assert course("sweep", "clock", 130, 0, 50, [0.0]).again
    assert course("sweep", "clock", 130, 1, 50, [0.0, 0.0]).again
    assert not course("sweep", "clock", 130, 2, 50, [0.0, 0.0, 0.0]).again
    assert course("sweep", "clock", 130, 3, 50, [0.0, 0.0, 5.0]).again
    assert not course("sweep", "clock", 130, 4, 50, [5.0, 5.0, 5.0]).again


def test_a_later_start_resumes_the_run(tmp_path: Path) -> None:
    words = ["mine.toml", "--trials", "4", "--name", "one", "--tracking.uri", "http://mlflow", "-q"]
    assert words_to_run("sweep", words, tmp_path) == words  # nothing has begun
    for name in ("config.toml", "run.json"):
        (tmp_path / name).write_text("")
    wanted = ["--resume", str(tmp_path), "--tracking.uri", "http://mlflow", "-q"]
    assert words_to_run("sweep", words, tmp_path) == wanted
    assert words_to_run("pack", words, tmp_path) == words
    again = ["--resume", "runs/one", "--trials", "8"]
    assert words_to_run("sweep", again, tmp_path) == again


def test_progress_is_counted_in_epochs(tmp_path: Path) -> None:
    assert progress_of(tmp_path) == 0
    (tmp_path / "trials.csv").write_text("id,epochs\nt0,3\nt1,\nt2,4\n")
    assert progress_of(tmp_path) == 7


def test_steps_within_an_epoch_are_progress(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    folder.write_summary({"epochs": 2})
    found = [progress_of(tmp_path)]
    for step in (0, 5, 800):
        checkpoint = folder.checkpoints / TRAINING / f"checkpoint_2026-11-22_10-15-{step:03d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / PROGRESS).write_text(json.dumps({"epoch": 2, "step": step}))
        found.append(progress_of(tmp_path))
    assert found[:2] == [2.0, 2.0]
    assert found[1] < found[2] < found[3] < 3
    (checkpoint / PROGRESS).write_text(json.dumps({"epoch": 3, "step": 0}))  # a start that was killed before its end
    assert progress_of(tmp_path) == 3.0
    (checkpoint / PROGRESS).unlink()
    assert progress_of(tmp_path) == found[2], "the newest one that can be read"


def test_steps_of_a_training_in_object_storage_are_progress(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path / "run", Storage(str(tmp_path / "shared" / "run")))
    folder.path.mkdir()
    folder.config.write_text(f'storage = "{tmp_path / "shared"}"\n')
    assert progress_of(folder.path) == 0.0
    checkpoint = folder.shared_checkpoints / TRAINING / "checkpoint_2026-11-22_10-15-001"
    checkpoint.write(PROGRESS, json.dumps({"epoch": 2, "step": 4}).encode())
    assert progress_of(folder.path) == 2.8
    folder.config.write_text("storage =")
    assert progress_of(folder.path) == 0.0


def test_the_line_on_what_was_used() -> None:
    line = usage_line("12", 1.5, 2, ["NVIDIA H100 80GB HBM3"] * 4, 146.4)
    assert line == "Slurm job 12: 1.5 h on 2 nodes of 4 GPUs each (NVIDIA H100 80GB HBM3), 146 RGU-hours"
    assert usage_line("12", 0.5, 1, [], None) == "Slurm job 12: 0.5 h on 1 node"
