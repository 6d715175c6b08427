"""Random numbers of a training: torch's, NumPy's and Python's global generators, seeded."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from raygpu.config.generators import random_state_kept

OF_OPTIMIZER = 2**32
"""Number beside a trial's seed from which its optimizer's making draws; epochs have small ones."""


def seed_all(seed: int) -> None:
    """Seed torch's generators of the CPU and of all GPUs, and the global generators of NumPy and Python.

    `torch.manual_seed` would also call backends that are not there, and each keeps the call's stack trace for good.
    """
    torch.default_generator.manual_seed(seed)
    if torch.backends.cuda.is_built():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def own_draws(*numbers: int) -> Iterator[None]:
    """Let code draw from generators that these numbers seed; afterwards those of the process go on as before."""
    on_gpus = [(generator, generator.get_state()) for generator in torch.cuda.default_generators]
    with random_state_kept():
        seed_all(seed_of(*numbers))
        try:
            yield
        finally:
            for generator, state in on_gpus:
                generator.set_state(state)


def default_generator(device: torch.device) -> torch.Generator:
    """Return torch's own generator of a device; of the current one if the device has no index."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.default_generator


def seed_of(*numbers: int) -> int:
    """Return a seed that these numbers make."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def numpy_has_drawn(seed: int) -> bool:
    """Return whether NumPy's global generator was used since `seed_all(seed)`."""
    fresh = np.random.RandomState(seed % 2**32).get_state(legacy=False)
    return pickle.dumps(np.random.get_state(legacy=False)) != pickle.dumps(fresh)


def python_has_drawn(seed: int) -> bool:
    """Return whether Python's global generator was used since `seed_all(seed)`, in any thread."""
    return random.getstate() != random.Random(seed).getstate()
