"""From an experiment's name to the user's code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from raygpu.config.source import require_there
from raygpu.errors import BadInput

MODULE = """
raise_on_import = 1 / 0

from os import getcwd as imported

class Mine: ...

def trained(config): ...

made = Mine
"""


@pytest.mark.parametrize("name", ["Mine", "trained", "made", "imported"])
def test_a_name_that_its_source_defines_is_there_without_an_import(name: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    for module in ("mine.py", "package/__init__.py", "package/inner.py"):
        (tmp_path / module).write_text(MODULE)
    for module in ("mine.py", "mine", "package", "package.inner", "package/inner.py"):
        require_there(f"{module}:{name}", tmp_path)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gone.py:Mine", "gone.py: no such file"),
        ("gone_module_of_ours:Mine", "no module 'gone_module_of_ours'"),
        ("plain_of_ours:Other", "plain_of_ours has no 'Other'; it has: Mine"),
        ("mine.py:Other", "cannot be imported: ZeroDivisionError"),
        ("broken.py:Mine", "cannot be imported: SyntaxError"),
        ("mine.py", 'write "package.module:Name"'),
    ],
)
def test_what_is_not_there_is_told_at_once(name: str, fault: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "plain_of_ours.py").write_text("class Mine: ...\n")
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    with pytest.raises(BadInput, match=r"^experiment: ") as raised:
        require_there(name, tmp_path)
    assert fault in str(raised.value)


def test_what_a_source_does_not_show_is_imported(tmp_path: Path) -> None:
    (tmp_path / "dynamic_of_ours.py").write_text("globals()['Mine'] = lambda config: None\n")
    require_there("dynamic_of_ours:Mine", tmp_path)
    assert "dynamic_of_ours" in sys.modules


def test_there_may_be_no_experiment(tmp_path: Path) -> None:
    require_there(None, tmp_path)
    require_there("pickled.pkl", tmp_path)


def test_one_of_many_names_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text("".join(f"def name_{i}(config): ...\n" for i in range(9)) + "def train(c): ...\n")
    with pytest.raises(BadInput, match=r"has no 'trian'; it has: name_0, .*, name_7, ... \(did you mean 'train'\?\)$"):
        require_there("many.py:trian", tmp_path)
