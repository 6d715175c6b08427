"""Every block of the tutorial and of the pages on trainings, other libraries and the rest works, in order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.docs.run_blocks import in_this_process, run_pages

TRAINING = [
    ("tutorial", "production"),
    ("balance",),
    ("checkpoints",),
    ("huggingface",),
    ("lightning",),
    ("multi-gpu-keras",),
]
"""Pages, together where they begin with the same commands."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("joined_ray")
@pytest.mark.parametrize("pages", TRAINING, ids="-".join)
def test_every_block_works_in_order(
    pages: Sequence[str], new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_pages(pages, Path(sys.executable), tmp_path, in_this_process(tmp_path, monkeypatch), new_store)
