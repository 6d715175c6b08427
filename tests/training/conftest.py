"""What trainings change in this process, put back."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """A training turns them off for its thread; Hypothesis wants them."""
    yield
    if "torch" in sys.modules:
        import torch

        torch.set_flush_denormal(False)
