"""A real service, started once: commands find it, share it, and leave it as it was, however they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raygpu.engines.cluster.ray_environment import ON_LOOPBACK
from raygpu.workflow import service_start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WAIT_S = 120.0
CODE = """
import json, os, sys, time
from pathlib import Path
import raygpu

def train(config):
    told = {"word": WORD, "variable": os.environ.get("SEEN"), "folder": os.getcwd(), "pid": os.getpid(),
            "torch": "torch" in sys.modules, "gone": os.environ.get("GONE"), "umask": os.umask(0o022)}
    Path(f"told-{os.environ['SEEN']}.json").write_text(json.dumps(told))
    for _ in range(config["reports"]):
        raygpu.report(score=config["x"])
        time.sleep(0.2)
"""


class Project:
    """A folder with a function to search over, and the commands in it."""

    def __init__(self, folder: Path, runtime: Path) -> None:
        self.folder = folder
        left_out = (ON_LOOPBACK, "RAY_AUTH_MODE", "PYTEST_CURRENT_TEST")
        self.environment = {name: value for name, value in os.environ.items() if name not in left_out}
        self.environment |= {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(runtime), "GONE": "yes"}
        self.write("first")

    def write(self, word: str) -> None:
        (self.folder / "mine.py").write_text(CODE.replace("WORD", repr(word)))

    def start(self, *words: str, by: tuple[str, ...] = ("raygpu",), **variables: str) -> subprocess.Popen[str]:
        """by: module of the command, and its first words."""
        environment = {**self.environment, **variables}
        if variables:
            del environment["GONE"]
        return subprocess.Popen(
            [sys.executable, "-m", *by, *words],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def sweep(
        self, seen: str, *words: str, reports: int = 2, by: tuple[str, ...] = ("raygpu", "sweep"), **variables: str
    ) -> subprocess.Popen[str]:
        lines = ['experiment = "mine.py:train"', "trials = 1", 'metric = "score"', 'direction = "max"']
        lines += ["[space]", "x = { uniform = [0.0, 1.0] }", f"reports = {reports}", "[tracking]", "enabled = false"]
        (self.folder / f"{seen}.toml").write_text("\n".join(lines))
        return self.start(f"{seen}.toml", "--name", seen, "-v", *words, by=by, SEEN=seen, **variables)

    def told(self, seen: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"told-{seen}.json").read_text())
        return found

    def done(self, *words: str) -> tuple[int, str]:
        return ended(self.start(*words))

    def state(self) -> dict[str, Any]:
        """What `raygpu status` tells, asked in this process: tests ask again and again."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_RUNTIME_DIR", self.environment["XDG_RUNTIME_DIR"])
            found = service_start.state()
        assert found is not None
        return found


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=WAIT_S)
    return process.returncode, said


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    runtime = tmp_path_factory.mktemp("run")
    runtime.chmod(0o700)
    made = Project(tmp_path_factory.mktemp("project"), runtime)
    code, said = made.done("up", "--idle-minutes", "20", "--workers", "2")
    assert code == 0, said
    pid = made.state()["pid"]
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    yield made
    code, said = made.done("down", "--now")
    assert (code, said.strip()) == (0, "service: ended")
    until(lambda: not any(is_alive(each) for each in family))
    assert made.done("status")[0] == 1


def test_there_is_one_service_alone(project: Project) -> None:
    code, said = project.done("up")
    assert code == 2
    assert "a service runs already" in said
    code, said = project.done("status", "--json")
    assert code == 0, said
    assert json.loads(said)["pid"] == project.state()["pid"]


def test_a_command_has_its_own_code_environment_and_folder_in_a_started_worker(project: Project) -> None:
    code, said = ended(project.sweep("one"))
    assert code == 0, said
    assert "workers were idle" in said
    first = project.told("one")
    assert first["variable"] == "one"
    assert first["word"] == "first"
    assert first["gone"] is None  # which the service was started with
    assert first["torch"]  # which the function does not import
    project.write("second")
    code, said = ended(project.sweep("two"))
    assert code == 0, said
    second = project.told("two")
    assert second["word"] == "second"
    assert second["pid"] != first["pid"]
    assert Path(second["folder"]).is_relative_to(project.folder)


@pytest.mark.parametrize("by", [("raygpu", "sweep"), ("raygpu.sweep",)])
def test_a_waiting_process_becomes_the_command(by: tuple[str, ...], project: Project) -> None:
    until(lambda: bool(project.state()["standby"]))
    running = project.sweep("-".join(["waited", *by]), reports=200, by=by)
    until(lambda: bool(project.state()["used_by"]))
    assert project.state()["used_by"][0]["pid"] != running.pid
    running.send_signal(signal.SIGINT)
    code, said = ended(running)
    assert code == 130, said
    assert "interrupted" in said
    assert project.state()["free_gpus"] == 1


@pytest.mark.parametrize("through", ["process", "standby"])
def test_a_killed_command_leaves_nothing(project: Project, through: str) -> None:
    if through == "standby":
        until(lambda: bool(project.state()["standby"]))
    name = f"killed-{through}"
    running = project.sweep(name, reports=600)
    until((project.folder / f"told-{name}.json").exists)
    worker = project.told(name)["pid"]
    assert project.state()["free_gpus"] == 0
    running.kill()
    running.communicate()
    until(lambda: not psutil.pid_exists(worker) or not is_alive(psutil.Process(worker)))
    until(lambda: project.state()["free_gpus"] == 1)
    code, said = ended(project.sweep(f"after-{through}"))
    assert code == 0, said
    assert "workers were idle" in said


def test_two_sweeps_share_it_and_a_third_waits(project: Project) -> None:
    half = project.sweep("half", "--cluster.max-gpus", "0.5", reports=60)
    until((project.folder / "told-half.json").exists)
    rest = project.sweep("rest", reports=60)  # wants all, and gets what is left
    until((project.folder / "told-rest.json").exists)
    assert {each["what"]: each["gpus"] for each in project.state()["used_by"]} == {"sweep half": 0.5, "sweep rest": 0.5}
    third = project.sweep("third")
    until(lambda: bool(project.state()["waiting"]))
    assert not (project.folder / "told-third.json").exists()
    for process in (half, rest, third):
        code, said = ended(process)
        assert code == 0, said
    assert "sweep third waits for its part" in said
    assert "max_gpus" not in (project.folder / "runs" / "rest" / "config.toml").read_text()


def test_a_command_that_cannot_use_it_says_so_and_runs(project: Project) -> None:
    code, said = ended(project.sweep("other", OMP_PROC_BIND="true"))
    assert code == 0, said
    assert "service: not used: OMP_PROC_BIND differs from its environment" in said
    assert "workers were idle" not in said
