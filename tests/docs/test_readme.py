"""Every command of the README works, in order, as an installed program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.run_blocks import run_pages


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_block_works_in_order(installed: Path, tmp_path: Path) -> None:
    run_pages(["README"], installed / "python", tmp_path)
