"""Checks that keep an array's members equal to their trainings alone, cheap enough for every epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.signature import differing_names
from raygpu.search.trials import Trial
from raygpu.training.base import NotAsAlone
from raygpu.training.torch.seeding import default_generator


def require_distinct(trials: Sequence[Trial]) -> None:
    """Raise ValueError if two trials have the same id: results and checkpoints go by it."""
    counts = Counter(trial.trial_id for trial in trials)
    if twice := sorted(name for name, count in counts.items() if count > 1):
        raise ValueError(f"trials: {', '.join(twice[:3])} given more than once; every member needs an id of its own")


class Guard:
    """Watches the hyper-parameters and random numbers that an array's code uses: one run of it stands for all members.

    trials: the members at the beginning. hp: the hyper-parameters that the array's code reads for all of them.
    """

    def __init__(self, trials: Sequence[Trial], hp: Hyperparameters, device: torch.device) -> None:
        self._differing = differing_names(trials)
        self._hp = hp
        self._devices = [torch.device("cpu"), *([device] if device.type == "cuda" else [])]

    def require_shared_reads(self) -> None:
        """Raise NotAsAlone if the code has read a hyper-parameter in which members differ."""
        if wrong := sorted(self._differing & self._hp.names_read):
            raise NotAsAlone(
                f"the members differ in {', '.join(wrong)}, which model(), a forward, augment() or training_step()"
                " reads; an array has one value for all"
            )

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Watch the code of an epoch of all members.

        Raises NotAsAlone if it drew random numbers that are not a member's own, or read hyper-parameters in which
        members differ.
        """
        before = self._generator_states()
        numpy_s = np.random.get_state()
        yield
        if any(not np.array_equal(one, other) for one, other in zip(numpy_s, np.random.get_state(), strict=True)):
            raise NotAsAlone("the model draws NumPy's random numbers, which all members of an array have in common")
        for state, earlier in zip(self._generator_states(), before, strict=True):
            if not torch.equal(state, earlier):
                raise NotAsAlone(
                    "the model draws random numbers in some steps only: the first ones, in which the array learned what"
                    " its members draw, had none"
                )
        self.require_shared_reads()

    def _generator_states(self) -> list[torch.Tensor]:
        return [default_generator(device).get_state() for device in self._devices]
