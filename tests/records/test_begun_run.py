"""The last line after a Ctrl-C names the folder of the run that has begun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raygpu.cli.command import framed
from raygpu.config.command_names import typed
from raygpu.records.begun_run import begun
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.run_folder import removed_if_failed


def line_of(run: Callable[[], int], capsys: pytest.CaptureFixture[str]) -> str:
    assert framed(run, "interrupted; nothing was kept") == 130
    return capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("sweep", "go on with: {sweep} --resume {folder}"),
        ("train", "go on with: {train} --resume {folder}"),
        ("pack", "its report: {report} {folder}"),
    ],
)
def test_it_names_the_folder(kind: str, advice: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunDirectory.create(tmp_path, "mine")

    def run() -> int:
        folder.write_run({"kind": kind})
        begun.set(folder)
        raise KeyboardInterrupt

    line = line_of(run, capsys)
    assert line.startswith("raygpu: interrupted before its end; what ")
    assert f"lies in {folder}; " in line
    commands = {name: typed(name) for name in ("sweep", "train", "report")}
    assert line.endswith(advice.format(folder=folder, **commands))
    assert begun.get() != folder, "the next command of this process has not begun this run"


def test_it_names_no_folder_that_was_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        with removed_if_failed(RunDirectory.create(tmp_path, "mine")):
            raise KeyboardInterrupt

    assert line_of(run, capsys) == "raygpu: interrupted; nothing was kept"


def test_a_measurement_has_begun_once_it_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunDirectory.create(tmp_path, "mine")

    def run() -> int:
        with removed_if_failed(folder):
            folder.write_run({"kind": "pack"})
        raise KeyboardInterrupt

    assert f"what was measured lies in {folder}" in line_of(run, capsys)


def test_a_message_of_its_own_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> int:
        begun.set(RunDirectory.create(tmp_path, "mine"))
        raise KeyboardInterrupt("interrupted; go on with: that")

    assert line_of(run, capsys) == "raygpu: interrupted; go on with: that"
