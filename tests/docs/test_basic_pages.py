"""Every block of the README and the pages that a newcomer reads first works, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.run_blocks import run_page

BASIC = ["README", "tutorial", "production"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", BASIC)
def test_every_block_works_in_order(page: str, installed: Path, tmp_path: Path) -> None:
    run_page(page, installed / "python", tmp_path)
