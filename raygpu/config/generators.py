"""The global random generators of Python, NumPy and torch, seeded for one sample of a data set or for an import."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np


def seed_generators(epoch: int, row: int, stage: int = 0) -> None:
    """Seed the generators for a stage of reading a sample in an epoch. torch's is left alone until torch is
    imported."""
    words = _words(epoch, row, stage)
    random.seed(words[0])
    np.random.seed(words[1] % 2**32)
    if (torch := _torch()) is not None:
        torch.default_generator.manual_seed(words[0] >> 1)


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


@contextmanager
def same_draws(stage: int) -> Iterator[None]:
    """Let code draw the same numbers in every process, whether torch has been imported or this code is the first to do
    so; restore the generators at the end. stage: a number for each piece of code."""
    was_imported, finder = _torch() is not None, _SeedsTorch(stage)
    with random_state_kept():
        seed_generators(0, 0, stage)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            if not was_imported and (torch := _torch()) is not None:
                torch.default_generator.seed()  # by chance, as torch's import leaves it


class _SeedsTorch(MetaPathFinder):
    """Seeds torch's generator as soon as torch is imported."""

    def __init__(self, stage: int) -> None:
        self._stage = stage

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find torch, and let its import end with a seed; None for other modules."""
        spec = PathFinder.find_spec(fullname, path, target) if fullname == "torch" else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_seed(module: ModuleType) -> None:
            """Execute torch's module, and seed its generator."""
            execute(module)
            module.default_generator.manual_seed(_words(0, 0, self._stage)[0] >> 1)

        spec.loader.exec_module = execute_and_seed  # type: ignore[method-assign]
        return spec


def _words(epoch: int, row: int, stage: int) -> list[int]:
    """Return the numbers by which the generators are seeded."""
    return [int(word) for word in np.random.SeedSequence([epoch, row, stage]).generate_state(2, np.uint64)]


def _torch() -> Any:
    """Return torch if it has been imported, else None."""
    return sys.modules.get("torch")
