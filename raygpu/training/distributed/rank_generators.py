"""The random numbers of each rank: its own for dropout and augmentation, and the same on all for the optimizers.

An optimizer that draws noise, as of Langevin dynamics, has to draw the same on every rank: each holds all parameters.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from raygpu.training.torch.models import epoch_seed
from raygpu.training.torch.seeding import default_generator, seed_all, seed_of


def seed_rank(seed: int, epoch: int, rank: int) -> None:
    """Seed an epoch as a training on one device does on the first rank, and otherwise on each of the others.

    seed: of the trial.
    """
    seed_all(seed_of(seed, epoch, rank) if rank else epoch_seed(seed, epoch))


@contextmanager
def drawn_alike(device: torch.device, *numbers: int) -> Iterator[None]:
    """Let torch draw the same on all ranks; afterwards its generators, of CPU and device, go on as before.

    numbers: at least four, which tell one such moment of a training from the others.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(default_generator(device))
    before, seed = [each.get_state() for each in generators], seed_of(*numbers)
    for each in generators:
        each.manual_seed(seed)
    try:
        yield
    finally:
        for each, state in zip(generators, before, strict=True):
            each.set_state(state)


def generators(device: torch.device) -> tuple[Any, ...]:
    """Return the states of torch's generators, and of Python's and NumPy's, as a checkpoint can hold them."""
    on_device = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    kind, keys, *rest = np.random.get_state(legacy=True)
    return torch.get_rng_state(), on_device, (random.getstate(), (kind, np.asarray(keys).tolist(), *rest))


def set_generators(states: tuple[Any, ...], device: torch.device) -> None:
    """Go on from the result of `generators`; an older checkpoint has those of torch alone."""
    cpu, cuda, *host = states
    torch.set_rng_state(cpu)
    for python, (kind, keys, *rest) in host:
        random.setstate(python)
        np.random.set_state((kind, np.array(keys, np.uint32), *rest))
    if cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(cuda, device)
