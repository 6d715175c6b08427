"""Jobs that were submitted to a Slurm which is too busy to answer; no Slurm is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SlurmSection
from raygpu.engines.slurm import jobs
from raygpu.engines.slurm.batch_script import BatchJob
from raygpu.engines.slurm.command_output import State
from raygpu.engines.slurm.jobs import SlurmJobs
from raygpu.errors import BadInput, RaygpuError
from raygpu.records import slurm_job
from raygpu.records.slurm_job import SlurmJob


def busy(*words: object) -> Any:
    raise RaygpuError("squeue: Slurm has not answered for 60 s")


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Submit a sweep, or an array of them, as job 12, to a Slurm that then answers nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(jobs.commands, "submit", lambda script: ("12", []))
    for name in ("queue", "state", "shown"):
        monkeypatch.setattr(jobs.commands, name, busy)

    def submit(name: str = "one", **slurm: object) -> list[str]:
        section = SlurmSection.model_validate(slurm)
        job = BatchJob("sweep", name, ["mine.toml"], 7, tmp_path / "runs" / name, tmp_path, "python", "", section)
        return SlurmJobs().submit(job, "", lambda line: None)

    return submit


def test_a_job_is_submitted_whether_or_not_slurm_answers_afterwards(submit: Callable[..., list[str]]) -> None:
    assert submit() == ["sweep-one"]
    assert SlurmJobs().waits_in_vain(["sweep-one"]) == []
    assert SlurmJobs().has("12")


def test_the_jobs_of_an_array_are_looked_up_at_once(
    submit: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    submit("study-39")  # an earlier one of the same id
    read, num_read = slurm_job.read, [0]

    def counted(folder: Path) -> SlurmJob | None:
        num_read[0] += 1
        return read(folder)

    job_ids = submit("study", array="0-38")
    live = {f"12_{index}": State("PENDING", "BadConstraints") for index in range(39)}
    monkeypatch.setattr(jobs.commands, "queue", lambda: live)
    monkeypatch.setattr(slurm_job, "read", counted)
    assert SlurmJobs().waits_in_vain(job_ids) == [
        "Slurm: BadConstraints: no node has what was asked for, so the job waits for ever"
    ]
    assert num_read == [40]


def test_a_job_is_followed_by_its_own_record_over_silences_of_slurm(
    submit: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No answer ends it: neither to the first question, nor to the one whether the job has begun anew."""
    submit()
    folder = tmp_path / "runs" / "one"
    shown: list[str] = []
    answers = iter([None, State("RUNNING"), State("COMPLETED"), None, State("COMPLETED"), State("COMPLETED")])

    def state(number: str) -> State:
        slurm_job.log_of(folder).write_text("a line\n")
        return next(answers) or busy()

    registered = slurm_job.submitted
    num_looks = [0]

    def submitted() -> Any:
        num_looks[0] += 1
        return registered()

    monkeypatch.setattr(jobs.commands, "state", state)
    monkeypatch.setattr(slurm_job, "submitted", submitted)
    for name, seconds in (("ASK_S", 0.03), ("LOOK_S", 0.001), ("LAST_S", 0.0)):
        monkeypatch.setattr(jobs, name, seconds)
    assert SlurmJobs().follow("sweep-one", shown.append).status == "SUCCEEDED"
    assert "".join(shown) == "a line\n"
    assert num_looks == [1 + 6], "one for the folder, and one for each question to Slurm"


def test_a_job_that_cannot_be_noted_is_refused_before_it_is_submitted(
    submit: Callable[..., list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs.commands, "submit", lambda script: pytest.fail("submitted"))
    (tmp_path / "cache").write_text("no folder")
    with pytest.raises(
        BadInput, match=r"^slurm: .*/cache/.*/slurm, raygpu's list of submitted jobs, cannot be written"
    ):
        submit()
    assert not (tmp_path / "runs" / "one").exists()
    (tmp_path / "runs").rmdir()
    (tmp_path / "runs").write_text("no folder")
    with pytest.raises(BadInput, match=r"^runs_dir: .*/runs/one/slurm cannot be written"):
        submit()


@pytest.mark.parametrize(
    ("word", "noted", "asked"),
    [
        ("RUNNING", {"message": slurm_job.QUEUED_AGAIN}, "INT"),  # a full quota has kept its driver's note away
        ("COMPLETING", {"message": slurm_job.QUEUED_AGAIN}, "cancel"),
        ("COMPLETING", {"ended": 2.0}, "cancel"),  # Slurm itself has queued it again
        ("RUNNING", {"ended": 2.0}, "INT"),
        ("COMPLETING", {}, "INT"),
        ("PENDING", {}, "cancel"),
    ],
)
def test_a_stop_lets_what_runs_write_its_checkpoints(
    word: str,
    noted: dict[str, Any],
    asked: str,
    submit: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit()
    folder = tmp_path / "runs" / "one"
    record = slurm_job.read(folder)
    assert record is not None
    record.write(started=1.0, **noted)
    requests: list[str] = []
    monkeypatch.setattr(jobs.commands, "state", lambda number: State(word))
    monkeypatch.setattr(jobs.commands, "cancel", lambda number: requests.append("cancel"))
    monkeypatch.setattr(jobs.commands, "signal", lambda number, name: requests.append(name))
    SlurmJobs().stop("sweep-one")
    assert requests == [asked]
    assert getattr(slurm_job.read(folder), "exit_code", 0) == (130 if asked == "cancel" else None)
