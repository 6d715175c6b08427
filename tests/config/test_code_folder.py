"""Which folder has the code that a configuration file names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raygpu.config import ProblemConfig
from raygpu.config.code_folder import code_folder


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Path]:
    """Return the folders of a run, of its code and the working folder; the run's has its code."""
    run, code, here = (tmp_path / name for name in ("code/runs/mine", "code", "here"))
    for folder in (run, here):
        folder.mkdir(parents=True)
    (code / "mine.py").write_text("class Net: ...\n")
    (run / "run.json").write_text(json.dumps({"source_folder": str(code)}))
    (run / "config.toml").touch()
    monkeypatch.chdir(here)
    return run, code, here


CODES = [
    {"experiment": "mine:Net"},
    {"experiment": "mine.py:Net"},
    {"command": "python mine.py --lr {lr}"},
    {"command": "/bin/sh mine.py config.toml --lr {lr}"},
]


@pytest.mark.parametrize("values", CODES, ids=str)
def test_a_file_in_a_runs_folder_has_the_runs_code_where_none_is_here(
    values: dict[str, Any], folders: tuple[Path, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, code, here = folders
    config, best, lines = ProblemConfig.model_validate(values), run / "best.toml", list[str]()
    assert code_folder(config, best, {}, lines.append) == code
    assert lines == [f"code: {config.code_name} of {code}, as of the run in {run}; there is none in {here}"]
    (here / "mine.py").write_text("class Net: ...\n")  # a copy, or another project
    assert code_folder(config, best, {}, lines.append) == here
    assert lines[1:] == [f"code: {config.code_name} of {here}; the run in {run} has that of {code}"]
    monkeypatch.chdir(code)
    assert code_folder(config, best, {}, lines.append) == code
    assert not lines[2:]


def test_code_of_a_flag_is_not_that_of_the_run(folders: tuple[Path, Path, Path]) -> None:
    run, _, here = folders
    (here / "new.py").write_text("class Net: ...\n")
    lines = list[str]()
    for experiment in ("new.py:Net", "mine.py:Net"):
        config = ProblemConfig(experiment=experiment)
        assert code_folder(config, run / "best.toml", {"experiment": experiment}, lines.append) == here
    assert not lines


def test_the_code_of_a_run_may_be_gone(folders: tuple[Path, Path, Path]) -> None:
    run, _, here = folders
    (run / "run.json").write_text(json.dumps({"source_folder": str(here / "gone")}))
    assert code_folder(ProblemConfig(experiment="mine:Net"), run / "best.toml", {}) == here
