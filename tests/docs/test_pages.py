"""README.md and docs/: links lead somewhere, and the commands and flags that stand there are taken."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from raygpu import __main__, down, gpus, submit, up
from raygpu.cli.command import Command
from raygpu.config import load
from raygpu.errors import BadInput
from raygpu.workflow import slurm_submission

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS, ROOT / "deploy" / "kubernetes" / "README.md"]
MOST_LINES = 160
"""Of the README: five screens."""

CODE_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
INLINE_CODE = re.compile(r"`([^`]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
COMMAND = re.compile(r"python -m ((?:raygpu|experiments)\.[\w.]+)([^\n`)]*)")
SHORT = re.compile(r"(?:^ *|`)raygpu (\w+)([^\n`&]*)", re.MULTILINE)
"""A command by the console script, at the beginning of a line or of inline code."""

by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", CODE_BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> list[tuple[str, list[str]]]:
    """The modules that a page runs, each with its arguments."""
    text = page.read_text().replace("\\\n", " ")
    code = "\n".join(
        [*CODE_BLOCK.findall(text), *(f"`{each}" for each in INLINE_CODE.findall(CODE_BLOCK.sub("", text)))]
    )
    short = [(f"raygpu.{name}", rest) for name, rest in SHORT.findall(code) if name in __main__.COMMANDS]
    found = [*COMMAND.findall(text), *short]
    return [(module.rstrip("."), shlex.split(rest, comments=True)) for module, rest in found]


def check(command: Command, words: list[str]) -> None:
    """Read a command line, and the file and the values that it names, as the command does."""
    arguments = command.flags.parse(words)
    file = ROOT / (arguments.file or command.default)
    if file.is_relative_to(ROOT / "conf"):
        load(file, arguments.overrides, command.schema)
    else:
        assert "/" not in str(arguments.file), "a file of the reader's own is in the reader's folder"


@by_page
def test_links_lead_somewhere(page: Path) -> None:
    links = [link for link in LINK.findall(CODE_BLOCK.sub("", page.read_text())) if "://" not in link]
    for link in links:
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@by_page
def test_commands_are_taken(page: Path) -> None:
    for module, words in commands(page):
        assert importlib.util.find_spec(module) is not None, module
        package, _, name = module.partition(".")
        if package != "raygpu":
            continue
        if name == "submit":
            words = submit.FLAGS.parse(words).words
            if not words or words[0] in submit.VERBS:
                continue
            name, *words = words
            flags, words = slurm_submission.split(words)
            slurm_submission.FLAGS.parse(flags)
        if name == "init":
            assert len(words) <= 1, "a folder"
            continue
        if name in ("doctor", "gpus", "up", "down", "status"):
            flags = words[: words.index("--")] if "--" in words else words
            known = gpus.FLAGS if name == "gpus" else importlib.import_module(module).COMMAND.flags
            assert known.parse(flags).words == []
            continue
        if name in ("deliver", "report"):
            parsed = importlib.import_module(f"raygpu.{__main__.MODULES.get(name, name)}").COMMAND.flags.parse(words)
            assert not [word for word in parsed.words if word.startswith("-")], "folders"
            continue
        check(submit.COMMANDS[name], words)


def test_commands_have_one_name() -> None:
    """Two pages say that `python -m raygpu.sweep` is `raygpu sweep`; all write the short one."""
    counts = {
        str(page.relative_to(ROOT)): page.read_text().count("python -m raygpu") for page in [ROOT / "README.md", *DOCS]
    }
    assert {name: count for name, count in counts.items() if count} == {
        "docs/configuration.md": 1,
        "docs/tutorial.md": 1,
    }


@by_page
def test_flags_in_the_text_are_known(page: Path) -> None:
    """Each `--flag value` between backticks is one of some command's."""
    for code in INLINE_CODE.findall(CODE_BLOCK.sub("", page.read_text())):
        if not code.startswith("--"):
            continue
        words = shlex.split(code)
        own = words[: words.index("--")] if "--" in words else words
        if any(not known.parse(own).words for known in (gpus.FLAGS, up.COMMAND.flags, down.COMMAND.flags)):
            continue
        flags, words = slurm_submission.split(submit.FLAGS.parse(words).words)
        slurm_submission.FLAGS.parse(flags)
        faults: list[str] = []
        for command in submit.COMMANDS.values():
            try:
                command.flags.parse(words)
            except BadInput as error:
                faults += error.faults
        named_alone = [fault for fault in faults if "unknown flag" in fault]
        assert len(named_alone) < len(submit.COMMANDS), code


def test_the_readme_is_short_and_links_every_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    for page in DOCS:
        assert f"({page.relative_to(ROOT)})" in text, page.name
