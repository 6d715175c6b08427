"""The global random generators of Python, NumPy and torch, seeded for one sample of a data set."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


def seed_generators(epoch: int, row: int, stage: int = 0) -> None:
    """Seed the generators for a stage of reading a sample in an epoch. torch's is left alone until torch is
    imported."""
    words = np.random.SeedSequence([epoch, row, stage]).generate_state(2, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) % 2**32)
    if (torch := _torch()) is not None:
        torch.default_generator.manual_seed(int(words[0]) >> 1)


def state() -> tuple[Any, ...]:
    """Return the state of the generators, in a form that can be compared."""
    torch, numpy = _torch(), np.random.get_state(legacy=False)
    torch_state = None if torch is None else torch.default_generator.get_state().numpy().tobytes()
    inner = numpy["state"]
    return random.getstate(), inner["pos"], inner["key"].tobytes(), numpy["has_gauss"], torch_state


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the generators at the end."""
    torch, python, numpy = _torch(), random.getstate(), np.random.get_state(legacy=False)
    torch_state = None if torch is None else torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.default_generator.set_state(torch_state)


def _torch() -> Any:
    """Return torch if it has been imported, else None."""
    return sys.modules.get("torch")
