"""The examples that come with raygpu, written from a checkout and from an installed wheel."""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from raygpu import init

ROOT = Path(__file__).parents[1]


def test_the_files_are_written_once_and_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main([str(tmp_path / "new")]) == 0
    files = sorted(path.relative_to(tmp_path / "new") for path in (tmp_path / "new").rglob("*.*"))
    assert files == sorted(init.shipped_files())
    assert {Path("conf/sweep/digits.toml"), Path("experiments/digits.py")} <= set(files)
    assert not any("benchmarks" in path.parts for path in files)
    assert f"{len(files)} files written in {tmp_path / 'new'}: experiments/ and conf/" in capsys.readouterr().out
    assert init.main([str(tmp_path / "new")]) == 0
    assert "all files are in" in capsys.readouterr().out


def test_a_file_with_another_content_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "conf" / "sweep" / "digits.toml"
    own.parent.mkdir(parents=True)
    own.write_text("mine = true\n")
    assert init.main([str(tmp_path)]) == 2
    assert f"raygpu: {own} exists already, with another content; it is not overwritten" in capsys.readouterr().err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]


@pytest.mark.parametrize("words", [["a", "b"], ["--force"]])
def test_other_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert init.main(words) == 2
    assert "one folder is allowed, and no flags" in capsys.readouterr().err


def test_an_empty_folder_is_told_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from raygpu import sweep

    monkeypatch.chdir(tmp_path)
    assert sweep.main([]) == 2
    assert "raygpu init writes examples into this folder" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_wheel_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    where = run(str(installed / "python"), "-c", "import raygpu; print(raygpu.__file__)")
    assert Path(where.strip()).is_relative_to(installed.parent)
    program = str(installed / "raygpu")
    assert "files written here: experiments/ and conf/" in run(program, "init")
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")} == set(init.shipped_files())
    assert "plan: " in run(program, "sweep", "--dry-run", "--trials", "2")


def test_what_a_build_copies_is_what_init_writes() -> None:
    text = (ROOT / "setup.py").read_text()
    assert all(f'"{pattern}"' in text for pattern in init.PATTERNS)
    assert "setuptools" in str(tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"])
