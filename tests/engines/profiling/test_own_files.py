"""Which files of a folder an experiment's code comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.engines.profiling import own_files as module
from raygpu.engines.profiling.own_files import is_own, own_files

FILES = {
    "train.py": "import os, torch\nimport blocks\nfrom net import heads\nfrom net.deep.norm import Norm as Own\n",
    "blocks.py": "def late():\n    import later\n    from . import not_a_package\n",
    "later.py": "import train  # in a circle\nPATTERN = '\\d'\n",
    "net/__init__.py": "",
    "net/heads.py": "from . import tails\nfrom .deep import *\nfrom ..blocks import late\n",
    "net/tails.py": "from .tails import missing\n",
    "net/deep/__init__.py": "from ..extra import more\n",
    "net/deep/norm.py": "from net import unused_name\n",
    "net/extra.py": "",
    "net/other.py": "",
    "not_imported.py": "",
    "os.py": "print('shadows nothing that is imported here')\n",
    "plot/draw.py": "",
    ".venv/lib/site-packages/torch/__init__.py": "import inner",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_what_is_imported_from_the_folder_counts(folder: Path) -> None:
    found = own_files([folder / "train.py"], [folder, folder / ".venv/lib/site-packages"])
    assert {str(path.relative_to(folder)) for path in found} == {
        "train.py", "blocks.py", "later.py", "os.py", "net/__init__.py", "net/heads.py", "net/tails.py",
        "net/deep/__init__.py", "net/deep/norm.py", "net/extra.py",
    }  # fmt: skip


def test_a_module_of_a_package_brings_its_package_along(folder: Path) -> None:
    found = own_files([folder / "net/deep/norm.py"], [folder])
    assert {path.name for path in found} == {"norm.py", "__init__.py", "extra.py"}


@pytest.mark.parametrize("is_package", [False, True])
def test_a_package_of_another_folder_is_found(is_package: bool, tmp_path: Path) -> None:
    for name, text in {"exp/train.py": "from lab.net import Net", "src/lab/net.py": ""}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    if is_package:
        (tmp_path / "exp/__init__.py").touch()
    found = own_files([tmp_path / "exp/train.py"], [tmp_path / "exp"], [tmp_path / "src"])
    assert tmp_path / "src/lab/net.py" in found


def test_a_file_that_is_no_python_imports_nothing(folder: Path) -> None:
    (folder / "train.sh").write_text("exec python train.py\n")
    (folder / "image.bin").write_bytes(b"\0\xff")
    (folder / "table.csv").write_text("import blocks\n")
    for name in ("train.sh", "image.bin", "table.csv"):
        assert own_files([folder / name], [folder]) == {folder / name}


def test_an_entry_without_a_suffix_is_python_by_its_first_line(folder: Path) -> None:
    (folder / "train").write_text("#!/usr/bin/env python3\nimport blocks\n")
    assert folder / "blocks.py" in own_files([folder / "train"], [folder])


def test_a_file_that_cannot_be_read_imports_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        """Stand in for a file without the right to read it."""
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    assert own_files([folder / "train.py"], [folder]) == {folder / "train.py"}


@pytest.mark.parametrize(
    "statement",
    [
        "import os as system, blocks as b, net.heads",
        "try: import blocks; from net import (  # both (of them)\n    tails,\n    heads,\n)\nexcept ImportError: pass",
        "from net import \\\n    heads\nimport \\\n  blocks",
        "# a comment's end \\\nimport blocks\r\nfrom net import(heads)",
        "\ufeffimport blocks\nfrom . net . heads import Head",
        "if 'import ': import blocks, net.heads",
        "TEXT = 'from here'\nimport blocks\nfrom net.heads import*",
    ],
)
def test_every_form_of_an_import_is_found(statement: str, folder: Path) -> None:
    (folder / "entry.py").write_text(statement, newline="")
    found = {path.name for path in own_files([folder / "entry.py"], [folder])}
    assert found >= {"blocks.py", "heads.py"}


def test_installed_packages_in_the_folder_of_python_are_not_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in conda and in containers."""
    monkeypatch.setattr(module, "STDLIB", tmp_path / "lib" / "python3.11")
    monkeypatch.setattr(module, "RAYGPU", tmp_path / "lib" / "python3.11" / "site-packages" / "raygpu")
    owned = {
        "json/__init__.py": False,
        "site-packages/nets/experiment.py": True,
        "dist-packages/nets/experiment.py": True,
        "site-packages/raygpu/experiment.py": False,
        "site-packages/raygpu": False,
    }
    assert {name: is_own(tmp_path / "lib" / "python3.11" / name) for name in owned} == owned
    installed = tmp_path / "lib" / "python3.11" / "site-packages" / "nets" / "experiment.py"
    assert own_files([installed], [tmp_path]) == {installed}, "its code counts, its imports do not"
