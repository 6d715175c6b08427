"""Commands as jobs of a real Slurm on this machine: submitted, followed, listed, and refused."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from raygpu import submit
from raygpu.engines.slurm import commands
from raygpu.engines.slurm.command_output import State
from raygpu.errors import RaygpuError
from raygpu.records import slurm_job
from raygpu.records.slurm_job import SlurmJob
from raygpu.tracking import carried_store
from tests.services.slurm import Slurm, slurm
from tests.slurm_cases import Project

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm() as found:
        yield found


@pytest.fixture
def project(tmp_path: Path, cluster: Slurm) -> Project:
    return Project(tmp_path, cluster)


@pytest.mark.slow
def test_a_sweep_is_submitted_and_followed_to_its_end(project: Project) -> None:
    project.write(epochs=3)
    done = project.submit("sweep", "mine.toml", "--name", "one", "--slurm.time", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Submitted batch job" in done.stdout
    assert "2 finished" in done.stdout
    assert "1 CPU and 1 thread per trial" in done.stdout  # of the job's two
    assert set(project.marks().values()) == {1}
    assert project.points("one") == {"t0000": [1, 2, 3], "t0001": [1, 2, 3]}
    listed = project.submit("list")
    assert re.search(r"^sweep-one +succeeded", listed.stdout, re.MULTILINE), listed.stdout
    assert project.submit("logs", "sweep-one").stdout == project.log("one")
    assert not list((project.folder / "runs").glob("mlflow.db?*")), "no log, no claim, no temporary file is left"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--slurm.partition", "nosuch"), "Invalid partition name specified"),
        (("--slurm.time", "1-0"), "Requested time limit is invalid"),
        (("--slurm.mem", "900G"), "Requested node configuration is not available"),
        (("--slurm.options=--nosuch=1",), "unrecognized option '--nosuch=1'"),
    ],
)
def test_what_slurm_refuses_is_one_line_in_its_words(project: Project, flags: tuple[str, ...], said: str) -> None:
    project.write(epochs=1)
    done = project.submit("sweep", "mine.toml", "--name", "refused", *flags)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
    assert not (project.folder / "runs" / "refused").exists()


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmJob:
    """Job 12, which runs, as far as the tests say so; no Slurm is asked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(submit.ADDRESS_VARIABLE, raising=False)
    store = tmp_path / "mlflow.db"
    carried_store.claim(store, "12")
    record = SlurmJob("sweep-one", "sweep", "12", str(tmp_path / "one"), 1.0, store=str(store)).write(started=2.0)
    slurm_job.register(tmp_path / "one")
    return record


def test_a_stop_after_which_slurm_is_silent_has_succeeded(
    noted: SlurmJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A repetition would leave the checkpoints out."""
    answers = [State("RUNNING")]
    sent: list[str] = []

    def state(number: str) -> State:
        if not answers:
            raise RaygpuError("scontrol: Slurm has not answered for 60 s")
        return answers.pop()

    monkeypatch.setattr(commands, "state", state)
    monkeypatch.setattr(commands, "signal", lambda number, name: sent.append(name))
    assert submit.main(["stop", "sweep-one"]) == 0
    assert sent == ["INT"]
    assert "sweep-one is asked to end" in capsys.readouterr().out


def test_a_stop_on_a_full_disk_leaves_the_store_to_others(
    noted: SlurmJob, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*words: object, **values: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    noted.write(ended=3.0)
    monkeypatch.setattr(SlurmJob, "write", full)
    monkeypatch.setattr(commands, "state", lambda number: State("COMPLETING"))
    monkeypatch.setattr(commands, "queue", dict)
    monkeypatch.setattr(commands, "cancel", lambda number: None)
    assert submit.main(["stop", "sweep-one"]) == 0
    assert "was stopped: before it ran, or between two starts" in capsys.readouterr().out
    assert carried_store.holder_of(Path(noted.store)) is None


def test_a_stop_between_two_starts_leaves_the_store_to_others(project: Project) -> None:
    project.write(epochs=1)
    number = project.started("--name", "waits", "--slurm.options=--begin=now+1hour")
    claim = project.folder / "runs" / "mlflow.db.claim"
    claim.write_text(number)  # as its first start has left it
    stopped = project.submit("stop", "sweep-waits")
    assert stopped.returncode == 0, stopped.stderr
    assert "was stopped: before it ran, or between two starts" in stopped.stdout
    assert not claim.exists()
    assert project.cluster.job(number)["JobState"] == "CANCELLED"
    project.started("--name", "later", "--slurm.options=--begin=now+1hour")
    claim.write_text("77")  # of another job
    assert project.submit("stop", "sweep-later").returncode == 0
    assert claim.read_text() == "77"
