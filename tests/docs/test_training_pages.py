"""Every block of the pages on trainings, other libraries and the rest works, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.run_blocks import run_page

TRAINING = ["balance", "checkpoints", "huggingface", "lightning", "multi-gpu-keras", "troubleshooting"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", TRAINING)
def test_every_block_works_in_order(page: str, installed: Path, tmp_path: Path) -> None:
    run_page(page, installed / "python", tmp_path)
