"""The commands and the Python of documentation pages, run in order in an empty folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from raygpu import __main__
from raygpu.records.clock import begin_call
from tests.docs.blocks import blocks, written
from tests.imported import forget

PREPARED: Mapping[str, Sequence[str]] = {
    "checkpoints": ["raygpu sweep conf/sweep/digits_keras.toml --name keras --trials 2 --epochs 1"],
    "exactness": [],
    "experiments": [],
    "python": [],
    "reliability": ["raygpu sweep mine.toml --name mine --trials 2 --epochs 1"],
    "results": ["raygpu sweep mine.toml --name mine --trials 2 --epochs 1"],
    "troubleshooting": ["raygpu sweep mine.toml --name mine --trials 2 --epochs 1"],
}
"""Pages that the reader comes to with the tutorial's mine.py and mine.toml, and after these commands."""
SHORTENED: Mapping[str, Mapping[str, str]] = {
    "balance": {"raygpu balance conf/train/digits.toml": "--workers 2 --rounds 2 --window-s 0.3 --turn-s 0.5"},
    "checkpoints": {"raygpu sweep conf/sweep/digits.toml --name search": "--trials 4 --epochs 3"},
    "experiments": {
        "raygpu sweep mine.toml --experiment loop.py:train --data.fraction 1 --name loop": "--trials 2 --epochs 2",
        "raygpu sweep mine.toml --experiment photos:Net --name photos": "--trials 2 --epochs 2",
        "raygpu sweep mine.toml --experiment ratings:Ratings --name ratings": "--trials 4",
        "raygpu sweep mine.toml --experiment regression:Regression --metric mae --name regression": "--trials 4",
    },
    "fused": {"raygpu sweep conf/sweep/digits_fused.toml": "--trials 16 --epochs 4"},
    "huggingface": {
        "raygpu sweep sweep.toml": "--trials 2 --epochs 1",
        "raygpu sweep sweep.toml --name resumable": "--trials 2 --epochs 2",
    },
    "lightning": {
        "raygpu sweep sweep.toml": "--trials 2 --epochs 1",
        "raygpu sweep sweep.toml --name resumable": "--trials 2 --epochs 2",
    },
    "packing": {
        "raygpu pack": "--numbers 1,2 --rounds 1 --window-s 0.3",
        "raygpu pack conf/pack/digits.toml --advise": "--numbers 1,2 --rounds 1 --window-s 0.3",
        "raygpu pack conf/sweep/digits_cnn.toml": "--numbers 1,2 --rounds 1 --window-s 0.3",
    },
    "repeats": {
        "raygpu sweep conf/sweep/digits_repeats.toml --name repeats --gpu.mode fused": "--trials 3 --epochs 2",
    },
    "search": {
        "raygpu sweep conf/sweep/digits.toml --name digits": "--trials 4 --epochs 3",
        "raygpu sweep conf/sweep/digits_architectures.toml --name architectures": "--trials 6 --epochs 2",
        "raygpu sweep conf/sweep/digits.toml --name finer --start-from runs/digits --start-best 3": (
            "--trials 4 --epochs 3"
        ),
    },
    "studies": {
        "raygpu place conf/place/reviews.toml --data.synthetic": "--rounds 2",
        "raygpu pack conf/pack/digits.toml --advise": "--numbers 1,2 --rounds 1 --window-s 0.3",
    },
    "sweeps": {
        "raygpu sweep conf/sweep/digits.toml --name digits": "--trials 4 --epochs 3",
        "raygpu sweep --resume runs/digits --trials 128": "--trials 8",
        "raygpu sweep conf/sweep/digits_population.toml --name population": "--trials 4 --epochs 6",
        "raygpu sweep conf/sweep/digits.toml --trials 2000 --time-budget-s 60 --name hurried": "--trials 4 --epochs 3",
    },
}
"""Commands that would take long, and the flags with which they run here."""
DEVICES = """
import tensorflow
cpu, = tensorflow.config.list_physical_devices("CPU")
tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 2)
"""
BEFORE_PYTHON = {"multi-gpu-keras": DEVICES}
"""Python that runs before a page's blocks: two devices, as the page's machine has them."""
PRINTED = {
    "README": ["registered: models:/mine/1, as @champion"],
    "balance": ["verdict: equal shares; "],
    "production": ["registered: models:/digits/1, as @champion"],
    "python": ["registered: models:/mine/1, as @champion"],
    "results": ["all of it is in MLflow"],
    "tutorial": ["registered: models:/digits/1, as @champion"],
}
"""What a page promises, in the output of its commands."""
WRITTEN: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "balance": {"runs/*/train.toml": {"ratios": "equal", "global_batch": 64}},
}
"""What a page's commands write: of the one file of a pattern, some values."""
NEEDED = {
    "checkpoints": ["tensorflow"],
    "experiments": ["tensorflow"],
    "huggingface": ["transformers", "accelerate"],
    "lightning": ["lightning"],
    "multi-gpu-keras": ["tensorflow"],
}
"""Packages of a page beside torch."""

EXPECTED = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Return the words of each command of a block, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def shortened(words: Sequence[str], flags: str) -> list[str]:
    """Return a command's words with these flags, in place of those of the same names."""
    own, added = list(words), shlex.split(flags)
    for name in added[::2]:
        if name in own:
            del own[own.index(name) : own.index(name) + 2]
    return [*own, *added]


Run = Callable[[Sequence[str]], str]
"""Runs a command line, and returns what it printed."""


def run_pages(
    pages: Sequence[str],
    python: Path,
    folder: Path,
    own: Run | None = None,
    new_store: Callable[[Path], str] | None = None,
) -> None:
    """Run each block of these pages, page by page, in an empty folder of this one.

    What a page has in common with an earlier one, word for word, was done in this folder, and is not done again: a
    command of its preparation or of its blocks, or a block of Python.

    python: of an environment with raygpu, whose programs lie beside it. own: runs the commands of raygpu in place of
    the environment's program. new_store: makes the MLflow store that the first command would make.
    """
    for package in ("torch", *(package for page in pages for package in NEEDED.get(page, ()))):
        pytest.importorskip(package)
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"} | surroundings(folder)
    for name in NOT_SET:
        environment.pop(name, None)
    earlier: dict[str, str] = {}
    printed: dict[str, str] = {}

    def run(words: Sequence[str]) -> str:
        done = subprocess.run(words, cwd=empty(folder), env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def raygpu(words: Sequence[str]) -> str:
        assert words[0] == "raygpu"
        return own(words[1:]) if own is not None else run([str(python.with_name("raygpu")), *words[1:]])

    def once(text: str, words: Sequence[str], program: Run) -> str:
        printed[text] = earlier[text] if text in earlier else program(words)
        return printed[text]

    raygpu(["raygpu", "init"])
    if new_store is not None:
        new_store(empty(folder) / "runs")
    for page in pages:
        output = ""
        if page in PREPARED:
            for name in ("mine.py", "mine.toml"):
                (empty(folder) / name).write_text(written("tutorial", name))
            for command in PREPARED[page]:
                once(command, shlex.split(command), raygpu)
        for block in blocks(page):
            if block.file is not None:
                path = empty(folder) / block.file
                above = path.read_text() + "\n\n" if block.appended else ""
                path.write_text(above + block.text)
            elif block.language == "python":
                text = BEFORE_PYTHON.get(page, "") + block.text
                shown = once(text, [str(python), "-c", text], run)
                for expected in EXPECTED.findall(block.text):
                    assert expected in shown, f"{page}: {block.text}\n{shown}"
                output += shown
            elif block.language == "bash":
                for words in commands(block.text):
                    words = shortened(words, SHORTENED.get(page, {}).get(shlex.join(words), ""))
                    output += once(shlex.join(words), words, raygpu)
        for expected in PRINTED.get(page, ()):
            assert expected in output, f"{page}: {output}"
        for pattern, values in WRITTEN.get(page, {}).items():
            (file,) = empty(folder).glob(pattern)
            assert tomllib.loads(file.read_text()).items() >= values.items(), file.read_text()
        earlier |= printed


NOT_SET = ("MLFLOW_TRACKING_URI", "PYTHONPATH")
"""Variables that a reader has not set."""


def surroundings(folder: Path) -> dict[str, str]:
    """Return the variables that a page's commands see: their files lie in this folder."""
    return {"XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}


def empty(folder: Path) -> Path:
    """Return the folder that a page's commands run in, made if need be."""
    (folder / "empty").mkdir(exist_ok=True)
    return folder / "empty"


def in_this_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs raygpu's commands in this process, for which everything is imported already."""
    monkeypatch.chdir(empty(folder))
    for name, value in surroundings(folder).items():
        monkeypatch.setenv(name, value)
    for name in NOT_SET:
        monkeypatch.delenv(name, raising=False)

    def run(words: Sequence[str]) -> str:
        printed = StringIO()
        begin_call()  # a command's age is that of its process otherwise
        with redirect_stdout(printed), redirect_stderr(printed):
            code = __main__.run(words)
        forget(folder)
        assert code == 0, f"raygpu {shlex.join(words)}\n{printed.getvalue()}"
        return printed.getvalue()

    return run
