"""Runs that are begun in the same second, by one command or by several."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from raygpu.records import run_name
from raygpu.records.run_name import automatic_name

NAMES = """
import sys
from pathlib import Path
from raygpu.records import run_name
run_name.time.strftime = lambda _: "20261122-101500"
print(run_name.automatic_name(Path(sys.argv[1]), "digits"), flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_name.time, "strftime", lambda _: "20261122-101500")


def test_a_folder_that_exists_is_left_to_its_run(tmp_path: Path) -> None:
    first = automatic_name(tmp_path, "digits")
    assert first == "digits-20261122-101500"
    assert automatic_name(tmp_path, "digits") == first, "not made yet, by this process"
    (tmp_path / first).mkdir()
    assert automatic_name(tmp_path, "digits") == f"{first}-2"
    (tmp_path / f"{first}-2").mkdir()
    assert automatic_name(tmp_path, "digits") == f"{first}-3"
    assert automatic_name(tmp_path / "others", "digits") == first


def test_processes_that_begin_in_the_same_second_have_names_of_their_own(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([sys.executable, "-c", NAMES, str(tmp_path)], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    begun = "digits-20261122-101500"
    assert {each.stdout.readline().strip() for each in others} == {begun, f"{begun}-2"}
    assert automatic_name(tmp_path, "digits") == f"{begun}-3"
    for each in others:
        each.communicate()
    assert automatic_name(tmp_path, "digits") == begun, "they have ended without a run"
