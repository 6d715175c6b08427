"""Every block of the tutorial and of the pages on trainings, other libraries and the rest works, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.run_blocks import in_this_process, run_page

TRAINING = [
    "tutorial",
    "production",
    "balance",
    "checkpoints",
    "huggingface",
    "lightning",
    "multi-gpu-keras",
    "troubleshooting",
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("joined_ray")
@pytest.mark.parametrize("page", TRAINING)
def test_every_block_works_in_order(
    page: str, new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_page(page, Path(sys.executable), tmp_path, in_this_process(tmp_path, monkeypatch), new_store)
