"""README.md and docs/*.md: the blocks of each page, run in order by an installed wheel, after `raygpu init`.

Blocks of the language `sh` are not run: they install, serve for ever, or need a cluster. Their number is fixed here.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import tomli_w

from raygpu.config import PlaceConfig, SubmitConfig, SweepConfig, load, validated
from raygpu.search.space import parse
from tests.docs.blocks import LANGUAGES, NOT_RUN, PAGES, RUN, blocks, written
from tests.docs.run_blocks import SHORTENED, commands
from tests.docs.test_searching_pages import SEARCHING
from tests.docs.test_training_pages import TRAINING

NUM_NOT_RUN = {
    "README": 1,
    "tutorial": 2,
    "cluster": 2,
    "huggingface": 1,
    "kubernetes": 4,
    "slurm": 4,
    "studies": 2,
    "report": 1,
    "service": 1,
}
"""Blocks of a page that no test runs; none on the other pages."""
FRAGMENT = {"experiment": "mine:Mine", "trials": 4, "metric": "accuracy", "space": {"lr": 0.1}}
"""Configuration that a page's fragment is a part of."""

INDENTED = re.compile(r"^ {4}(?:raygpu|python|pip) ", re.MULTILINE)
FENCES = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

READ_ALONE = ("slurm",)
"""Pages whose tables are read here, while their commands need what no test of a page has."""
WITH_BLOCKS = [
    page for page in PAGES if page not in READ_ALONE and any(block.language in RUN for block in blocks(page))
]


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


def test_every_page_with_blocks_is_run() -> None:
    assert sorted(["README", *(page for pages in (*SEARCHING, *TRAINING) for page in pages)]) == sorted(WITH_BLOCKS)


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
        if table := values.pop("slurm", None):
            assert validated({"slurm": table}, SubmitConfig, page)
        if not set(values) <= set(SweepConfig.model_fields):
            values = {"space": values}
        if block.file is None:
            own = {name: value for name, value in FRAGMENT.items() if "command" not in values or name != "experiment"}
            values = own | values
        file = tmp_path / "read.toml"
        file.write_text(tomli_w.dumps(values))
        config = load(file, {}, SweepConfig)
        assert parse(config.space, config.search.algorithm).parameters
