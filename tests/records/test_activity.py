"""Notes of what a process trains: seen by others while it lives, and by nobody after its end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from raygpu.planning.scaling_laws import Affine
from raygpu.planning.training_need import Need
from raygpu.records import activity, scratch
from raygpu.records.activity import Activity

OTHER = """
from raygpu.records import activity
activity.note(activity.Activity("digits", ("t0001", "t0002"), 0.5, 1200.0))
print("noted", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("end", ["ends", "is killed"])
def test_a_note_of_another_process_goes_with_it(end: str) -> None:
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", OTHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "noted\n"
        assert activity.living() == {other.pid: Activity("digits", ("t0001", "t0002"), 0.5, 1200.0)}
        if end == "is killed":
            other.kill()
        else:
            other.communicate("\n")
        other.wait()
    assert activity.living() == {}


def test_a_note_tells_what_one_more_training_needs() -> None:
    need = Need("fused", "NVIDIA A100", 40.0, 32, "throughput peaks at 32", None, Affine(1.0, 0.25))
    noted = Activity("a", ("t0001",), 0.5, None, need)
    activity.note(noted)
    assert activity.living() == {os.getpid(): noted}


def test_a_note_is_replaced_and_taken_back() -> None:
    activity.note(Activity("a", ("t0001",)))
    activity.note(Activity("b", ("t0002",)))
    assert activity.living()[os.getpid()].run == "b"
    activity.note(None)
    activity.note(None)
    assert activity.living() == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"run": "a"}',
        '{"run": "a", "trials": [], "colour": 1}',
        '{"run": "a", "trials": [], "need": {"way": "fused"}}',
    ],
)
def test_another_version_s_note_is_passed_over(text: str) -> None:
    (scratch.home() / activity.FILE).write_text(text)
    assert activity.living() == {}


def test_a_folder_that_cannot_be_written_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    activity.note(Activity("a", ("t0001",)))
    assert activity.living() == {}
