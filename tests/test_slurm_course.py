"""What becomes of a job of a real Slurm: stopped, out of time, preempted, on a node that fails, beside others."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.slurm import Slurm, slurm
from tests.slurm_cases import Project, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    with slurm() as found:
        yield found


@pytest.fixture
def project(new_store: Callable[[Path], str], tmp_path: Path, cluster: Slurm) -> Project:
    return Project(tmp_path, cluster, new_store)


@pytest.fixture
def project_without_store(tmp_path: Path, cluster: Slurm) -> Project:
    return Project(tmp_path, cluster)


def require_whole(project: Project, name: str, epochs: int, *, again: int) -> None:
    """Every epoch was trained, at most `again` of them twice, and MLflow has each of them once."""
    marks = project.marks()
    assert len(marks) == 2 * epochs
    assert sum(marks.values()) - len(marks) <= again, marks
    assert project.points(name) == {trial: list(range(1, epochs + 1)) for trial in ("t0000", "t0001")}
    summary = project.summary(name)
    assert summary["completed"] == 2
    assert summary["tracking"]["undelivered"] == 0


def test_a_job_out_of_time_goes_on_until_it_is_done(project: Project) -> None:
    project.write(epochs=115, seconds=1.0)
    done = project.submit("sweep", "mine.toml", "--name", "long", "--slurm.time", "2", timeout_s=800)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "the wall time ends soon" in done.stdout
    restarts = project.record("long")["restarts"]
    assert restarts >= 1
    require_whole(project, "long", 115, again=2 * restarts)


def trains_on(project: Project, epochs: int, what: str) -> None:
    """Wait for so many epochs more: Slurm may have a job that is queued again wait for two minutes."""
    before = project.marks().total()
    until(lambda: project.marks().total() >= before + epochs, 400, what)


def preempt(project: Project, number: str, node: str, restarts: int) -> None:
    """Have an urgent job take a node, and wait until Slurm has queued the other one again."""
    urgent = ("--partition=urgent", f"--nodelist={node}", "--cpus-per-task=2", "--mem=100M", "--output=/dev/null")
    project.cluster.called("sbatch", *urgent, "--wrap", "sleep 5")
    until(lambda: project.cluster.job(number).get("Restarts") == str(restarts), what="queued again by a preemption")


@contextmanager
def following(project: Project, name: str, number: str) -> Iterator[Future[subprocess.CompletedProcess[str]]]:
    """Follow a sweep's output meanwhile; where the test fails, its job is cancelled, with which the output ends."""
    with ThreadPoolExecutor() as pool:
        followed = pool.submit(project.submit, "logs", "-f", f"sweep-{name}", timeout_s=800)
        try:
            yield followed
        except BaseException:
            project.cluster.called("scancel", number, check=False)
            raise


def test_a_job_goes_on_after_a_preemption_with_notice_and_by_hand_after_a_stop(project: Project) -> None:
    """No more than the epochs under way are lost by each."""
    project.write(epochs=100, seconds=0.3)
    number = project.started("--name", "asked", "--slurm.options=--nodelist=n1", "--slurm.partition", "cpu")
    until(lambda: len(project.marks()) >= 12, what="the first start trains")
    preempt(project, number, "n1", 1)
    trains_on(project, 6, "goes on after the preemption")
    assert project.record("asked")["restarts"] == 1
    assert "Slurm gives the nodes to another job" in project.log("asked")
    marks = project.marks()
    assert marks.total() - len(marks) <= 2, f"lost by the preemption: {marks}"

    stopped = project.submit("stop", "sweep-asked")
    assert "is asked to end" in stopped.stdout
    until(lambda: project.record("asked")["exit_code"] is not None, what="ends after the stop")
    assert "asked to stop: sweep writes its checkpoints" in project.log("asked")
    status = project.submit("status", "sweep-asked").stdout
    assert re.search(r"^sweep-asked +stopped", status), status
    assert project.record("asked")["restarts"] == 1, "a stop queues nothing"
    assert len(project.marks()) < 2 * 100, "stopped before its end"

    project.cluster.called("sbatch", str(project.folder / "runs/asked/slurm/job.sh"))
    followed = project.submit("logs", "-f", "sweep-asked")
    assert followed.returncode == 0, followed.stdout[-2000:]
    require_whole(project, "asked", 100, again=4)


def test_a_job_goes_on_elsewhere_after_its_node_fails_and_after_a_preemption_without_notice(project: Project) -> None:
    """Ray's processes end with the command, and whoever follows the output sees it to the end."""
    project.write(epochs=100, seconds=0.3)
    number = project.started("--name", "struck", "--slurm.partition", "short")
    until(lambda: len(project.marks()) >= 12, what="the first start trains")
    lost = project.cluster.job(number)["NodeList"]
    with following(project, "struck", number) as followed:
        project.cluster.fail(lost)
        try:
            trains_on(project, 12, "goes on after the node's failure")
        finally:
            project.cluster.restore(lost)
        second = project.record("struck")
        assert second["restarts"] == 1
        assert second["nodes"] != lost
        marks = project.marks()
        assert marks.total() - len(marks) <= 30, f"lost by the node's failure: {marks}"

        preempt(project, number, second["nodes"], 2)
        done = followed.result()
    assert done.returncode == 0, done.stdout[-2000:]
    assert project.record("struck")["restarts"] == 2
    require_whole(project, "struck", 100, again=50)


def test_a_cancelled_job_leaves_the_store_to_others(project: Project) -> None:
    project.write(epochs=200, seconds=0.3)
    number = project.started("--name", "cancelled")
    until(lambda: len(project.marks()) >= 4)
    claim = project.folder / "runs" / "mlflow.db.claim"
    assert claim.read_text() == number
    project.cluster.called("scancel", number)
    until(lambda: not claim.exists())
    until(lambda: project.record("cancelled")["ended"] is not None)
    status = project.submit("status", number).stdout
    assert re.search(r"^sweep-cancelled +stopped", status), status


def test_two_jobs_on_one_node_do_not_meet(project: Project) -> None:
    """Each has one CPU and a Ray of its own; the second one leaves the store to the first, and is delivered later."""
    project.write(epochs=40, seconds=0.3)
    options = ("--slurm.options=--nodelist=n2", "--slurm.cpus-per-task", "1", "--slurm.mem", "2G")
    for name in ("left", "right"):
        project.started("--name", name, *options)
    for name in ("left", "right"):
        assert project.submit("logs", "-f", f"sweep-{name}").returncode == 0, project.log(name)[-2000:]
    left, right = (project.record(name) for name in ("left", "right"))
    assert left["started"] < right["ended"]
    assert right["started"] < left["ended"]
    spooled = [name for name in ("left", "right") if "is in use by Slurm job" in project.log(name)]
    assert len(spooled) == 1
    assert project.points(spooled[0]) == {}
    delivered = project.cluster.raygpu("deliver", f"runs/{spooled[0]}", cwd=project.folder)
    assert delivered.returncode == 0, delivered.stdout + delivered.stderr
    for name in ("left", "right"):
        assert project.points(name) == {trial: list(range(1, 41)) for trial in ("t0000", "t0001")}


def test_an_array_of_jobs_is_gathered(project_without_store: Project) -> None:
    project = project_without_store
    project.write(epochs=4, seconds=0.1)
    done = project.submit("sweep", "mine.toml", "--name", "study", "--slurm.array", "0-1", "--slurm.cpus-per-task", "1")
    assert done.returncode == 0, done.stderr
    for index in (0, 1):
        followed = project.submit("logs", "-f", f"sweep-study-{index}")
        assert followed.returncode == 0, followed.stdout[-2000:]
    assert not (project.folder / "runs" / "mlflow.db").exists()
    assert len(project.marks()) == 2 * 2 * 4  # other seeds, so other trials
    delivered = project.cluster.raygpu("deliver", "runs/study-0", "runs/study-1", cwd=project.folder)
    assert delivered.returncode == 0, delivered.stdout + delivered.stderr
    for index in (0, 1):
        assert project.points(f"study-{index}") == {trial: [1, 2, 3, 4] for trial in ("t0000", "t0001")}


def test_a_sweep_over_two_nodes(project: Project) -> None:
    """Workers on both find data that Git ignores."""
    project.write(epochs=20, seconds=1.0)
    (project.folder / "data").mkdir()
    (project.folder / "data" / "x").touch()
    (project.folder / ".gitignore").write_text("data/\n")
    code = project.folder / "project.py"
    code.write_text(
        code.read_text().replace("def train(config):\n", 'def train(config):\n    open("data/x").close()\n')
    )
    options = ("--slurm.nodes", "2", "--slurm.gpus-per-node", "1", "--gpu.fraction", "1", "--slurm.time", "9")
    done = project.submit("sweep", "mine.toml", "--name", "wide", *options)
    assert done.returncode == 0, done.stdout[-3000:] + project.log("wide")[-3000:]
    require_whole(project, "wide", 20, again=0)
    with (project.folder / "runs" / "wide" / "trials.csv").open() as file:
        gpus = [line.split(",") for line in file.read().splitlines()]
    column = gpus[0].index("gpu")
    assert {row[column] for row in gpus[1:]} == {"0", "1"}
