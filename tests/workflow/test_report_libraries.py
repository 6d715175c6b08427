"""The report's libraries are imported while trials run, and none is left for the end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from raygpu.workflow import report_libraries
from raygpu.workflow.report_libraries import imported_early

PROGRAM = """
import sys
from pathlib import Path
from raygpu.records.run_data import RunData
from tests.report_cases import sweep_folder
from raygpu.workflow.report_libraries import LIBRARIES, imported_early
from raygpu.workflow.run_report import write_report
import threading
run = RunData.load(sweep_folder(Path(sys.argv[1]) / "run"))
with imported_early(lambda: True):
    for thread in threading.enumerate():
        if thread.name == "report-libraries":
            thread.join()
before = set(sys.modules)
write_report(run, print)
new = set(sys.modules) - before
print(len(new), sorted({name.partition(".")[0] for name in new} - {name.partition(".")[0] for name in before}))
"""
FEW = 100
"""Largest number of modules that a report may still import: plotly's for each kind of figure. Without the early import
there are some 1,200."""


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the modules that are imported early; none is."""
    names: list[str] = []
    monkeypatch.setattr(report_libraries.importlib, "import_module", names.append)
    monkeypatch.setattr(report_libraries, "LOOK_S", 0.01)
    return names


def wait_for_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "report-libraries":
            thread.join(60)


def test_libraries_are_imported_once_a_trial_has_begun(imported: list[str]) -> None:
    begun = threading.Event()
    with imported_early(begun.is_set):
        time.sleep(0.05)
        assert imported == []
        begun.set()
        wait_for_thread()
    assert imported == list(report_libraries.LIBRARIES)


def test_nothing_is_imported_if_no_trial_begins(imported: list[str]) -> None:
    with imported_early(lambda: False):
        pass
    wait_for_thread()
    assert imported == []


def test_an_interrupt_while_the_thread_starts_ends_it(imported: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), imported_early(lambda: False):
        pass
    wait_for_thread()
    assert not [thread for thread in threading.enumerate() if thread.name == "report-libraries"]


def test_the_block_ends_after_the_import_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, done = threading.Event(), list[str]()

    def slow(name: str) -> None:
        begun.set()
        time.sleep(0.1)
        done.append(name)
        raise RuntimeError("deadlock detected")  # as where another thread imports the same libraries

    monkeypatch.setattr(report_libraries.importlib, "import_module", slow)
    with imported_early(lambda: True):
        begun.wait(60)
    assert done == [report_libraries.LIBRARIES[0]]


def test_a_report_then_imports_little(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    number, packages = done.stdout.strip().split(" ", 1)
    assert int(number) <= FEW
    assert packages == "[]"
