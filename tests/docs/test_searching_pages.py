"""Every block of the pages on searches and on sharing a GPU works, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.run_blocks import run_page

SEARCHING = [
    "sweeps",
    "repeats",
    "search",
    "packing",
    "python",
    "experiments",
    "studies",
    "fused",
    "results",
    "reliability",
    "exactness",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SEARCHING)
def test_every_block_works_in_order(page: str, installed: Path, tmp_path: Path) -> None:
    run_page(page, installed, tmp_path)
