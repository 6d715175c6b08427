"""docs/reference/ is what docs/write_reference.py writes from the schemas and the docstrings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import raygpu
from raygpu.config.loading import SCHEMAS, fields

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("configuration.md", "python.md")


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", DOCS / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up there
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_step(writer: ModuleType, name: str) -> None:
    assert set(writer.PAGES) == set(PAGES)
    assert (DOCS / "reference" / name).read_text() == writer.PAGES[name](), "make reference writes it anew"


def test_every_key_has_a_row_with_a_meaning() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    rows = [[cell.strip() for cell in line.split(" | ")] for line in page.splitlines() if line.startswith("| `")]
    assert all(len(row) == 5 and row[3] for row in rows)
    names = {row[0].removeprefix("| ").strip("`") for row in rows}
    for schema in SCHEMAS:
        for name, _ in fields(schema):
            assert name.rpartition(".")[2] in names, name


def test_every_public_name_has_an_entry() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    for name in raygpu.__all__:
        assert f"\n### raygpu.{name}\n" in page, name
