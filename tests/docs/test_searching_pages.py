"""Every block of the pages on searches, on sharing a GPU and on what goes wrong works, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.docs.run_blocks import in_this_process, run_pages

SEARCHING = [
    ("search", "sweeps"),
    ("repeats",),
    ("packing",),
    ("python",),
    ("experiments",),
    ("studies",),
    ("fused",),
    ("results", "reliability", "troubleshooting"),
    ("exactness",),
]
"""Pages, together where they begin with the same commands."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("joined_ray")
@pytest.mark.parametrize("pages", SEARCHING, ids="-".join)
def test_every_block_works_in_order(
    pages: Sequence[str], new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pages(pages, Path(sys.executable), tmp_path, in_this_process(tmp_path, monkeypatch), new_store)
