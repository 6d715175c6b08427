"""README.md and docs/*.md: the blocks of each page, run in order by an installed wheel, after `raygpu init`.

Blocks of the language `sh` are not run: they install, serve for ever, or need a cluster. Their number is fixed here.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import tomli_w

from raygpu.config import PlaceConfig, SweepConfig, load
from raygpu.search.space import parse
from tests.docs.blocks import LANGUAGES, NOT_RUN, PAGES, RUN, blocks, written

NUM_NOT_RUN = {"README": 1, "tutorial": 2, "cluster": 1, "kubernetes": 4, "slurm": 4, "studies": 2}
"""Blocks of a page that no test runs; none on the other pages."""
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
    "studies": {
        "raygpu place conf/place/reviews.toml --data.synthetic": "--rounds 2",
        "raygpu pack conf/pack/digits.toml --advise": "--numbers 1,2 --rounds 1 --window-s 0.3",
    },
    "sweeps": {
        "raygpu sweep conf/sweep/digits.toml --name digits": "--trials 4 --epochs 3",
        "raygpu sweep --resume runs/digits --trials 128": "--trials 8",
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
    "production": ["registered: models:/digits/1, as @champion"],
    "python": ["registered: models:/mine/1, as @champion"],
    "results": ["all of it is in MLflow"],
    "tutorial": ["registered: models:/digits/1, as @champion"],
}
"""What a page promises, in the output of its commands."""
NEEDED = {
    "checkpoints": ["tensorflow"],
    "huggingface": ["transformers", "accelerate"],
    "lightning": ["lightning"],
    "multi-gpu-keras": ["tensorflow"],
}
"""Packages of a page beside torch."""
FRAGMENT = {"experiment": "mine:Mine", "trials": 4, "metric": "accuracy", "space": {"lr": 0.1}}
"""Configuration that a page's fragment is a part of."""

EXPECTED = re.compile(r"print\(.*\)  # (.*)$", re.MULTILINE)
INDENTED = re.compile(r"^ {4}(?:raygpu|python|pip) ", re.MULTILINE)
FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

WITH_BLOCKS = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


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


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_hidden(page: str) -> None:
    found = blocks(page)
    text = PAGES[page].read_text()
    assert len(found) == text.count("\n```") / 2, "each fence stands after an empty line"
    assert {block.language for block in found} <= set(LANGUAGES)
    suffixes = {"python": ".py", "toml": ".toml"}
    assert all(block.file.endswith(suffixes[block.language]) for block in found if block.file is not None)
    assert sum(block.language == NOT_RUN for block in found) == NUM_NOT_RUN.get(page, 0)
    assert not INDENTED.search(FENCES.sub("", text)), "a command is in a block with a language"


def test_the_tables_name_commands_that_are_there() -> None:
    for page, flags in SHORTENED.items():
        there = {
            shlex.join(words) for block in blocks(page) if block.language == "bash" for words in commands(block.text)
        }
        assert set(flags) <= there, page


@pytest.mark.parametrize("file", ["mine.py", "mine.toml"])
def test_the_readme_and_the_tutorial_have_one_experiment(file: str) -> None:
    assert written("README", file) == written("tutorial", file)


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.language == "toml" for block in blocks(page))])
def test_configurations_are_read(page: str, tmp_path: Path) -> None:
    """Whole files, and fragments: keys of the top or, if they are none, hyper-parameters."""
    for block in blocks(page):
        if block.language != "toml":
            continue
        values = tomllib.loads(block.text)
        if "placements" in values:
            file = tmp_path / "read.toml"
            file.write_text(block.text)
            assert load(file, {}, PlaceConfig).placements
            continue
        if not set(values) <= set(SweepConfig.model_fields):
            values = {"space": values}
        if block.file is None:
            own = {name: value for name, value in FRAGMENT.items() if "command" not in values or name != "experiment"}
            values = own | values
        file = tmp_path / "read.toml"
        file.write_text(tomli_w.dumps(values))
        config = load(file, {}, SweepConfig)
        assert parse(config.space, config.search.algorithm).parameters


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", WITH_BLOCKS)
def test_every_block_works_in_order(page: str, installed: Path, tmp_path: Path) -> None:
    for package in ("torch", *NEEDED.get(page, ())):
        pytest.importorskip(package)
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = os.environ | {
        "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
    }
    for name in ("MLFLOW_TRACKING_URI", "PYTHONPATH"):
        environment.pop(name, None)
    output = ""

    def run(*words: str) -> str:
        done = subprocess.run(list(words), cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def raygpu(words: Sequence[str]) -> str:
        assert words[0] == "raygpu"
        return run(str(installed / "raygpu"), *words[1:])

    raygpu(["raygpu", "init"])
    if page in PREPARED:
        for file in ("mine.py", "mine.toml"):
            (folder / file).write_text(written("tutorial", file))
        for command in PREPARED[page]:
            raygpu(shlex.split(command))
    for block in blocks(page):
        if block.file is not None:
            before = (folder / block.file).read_text() + "\n\n" if block.appended else ""
            (folder / block.file).write_text(before + block.text)
        elif block.language == "python":
            printed = run(str(installed / "python"), "-c", BEFORE_PYTHON.get(page, "") + block.text)
            for expected in EXPECTED.findall(block.text):
                assert expected in printed, f"{block.text}\n{printed}"
            output += printed
        elif block.language == "bash":
            for words in commands(block.text):
                output += raygpu(shortened(words, SHORTENED.get(page, {}).get(shlex.join(words), "")))
    for expected in PRINTED.get(page, ()):
        assert expected in output, output
