"""A trial, and the result of one of its epochs: the values that the layers hand to each other. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BATCH_SIZE = 32
"""Samples of a batch where the hyper-parameters have no `batch_size`."""
Order = tuple[int, str, int, str]
"""Key that sorts ids in the order of the search."""
_NAME = re.compile(r"t[0-9]{4,12}(-[0-9]{1,6})?")


@dataclass(frozen=True, slots=True)
class Trial:
    """One training of a set of hyper-parameters, which is scored: the only one of its set, or one of its repeats."""

    trial_id: str
    """Id: `t0000`, `t0001` ... in the order of the search; of a repeat `t0000-1`, `t0000-2` ..."""
    seed: int
    """Seed of initial parameters and the order of data; follows from the sweep's seed and the trial's place. The
    repeats of a place have the same seed in every set, so that sets can be compared pair by pair."""
    hyperparameters: Mapping[str, Any]
    repeat: int | None = None
    """Number of the repeat within its set, from 0; None if each set is trained once."""
    fold: int | None = None
    """Fold of the data that validates this training, from 0; None without cross-validation."""

    def __reduce__(self) -> tuple[type[Trial], tuple[Any, ...]]:
        # The way of a frozen dataclass with slots takes several times as long, and arrays have thousands of trials.
        return Trial, (self.trial_id, self.seed, self.hyperparameters, self.repeat, self.fold)

    @property
    def set_id(self) -> str:
        """Id of the set of hyper-parameters: the trial's own, or what the ids of all repeats begin with."""
        return self.trial_id.partition("-")[0]

    @staticmethod
    def name(index: int) -> str:
        """Return the id of the trial at this place, `t0000`."""
        return f"t{index:04d}"

    @staticmethod
    def repeat_name(set_id: str, repeat: int) -> str:
        """Return the id of a set's repeat, from 0: `t0000-1` is the first one."""
        return f"{set_id}-{repeat + 1}"

    @staticmethod
    def order(trial_id: str) -> Order:
        """Return the key that sorts ids, of trials or sets, in the order of the search: `t9999` before `t10000`."""
        set_id, _, number = trial_id.partition("-")
        return len(set_id), set_id, len(number), number

    @staticmethod
    def require_name(value: object) -> str:
        """Return a trial's id that was read from a file or a store. Raises ValueError if it is none, as a path is."""
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"read {value!r}; allowed: a trial's id, as t0003")
        return value


@dataclass(frozen=True, slots=True)
class EpochResult:
    """The result of a training's epoch, or of a report of a function or script."""

    epoch: int
    """Number of the epoch, from 1."""
    metrics: Mapping[str, float]
    """Values by path: `train/loss`, `validation/loss`, `validation/accuracy`; by a function's own names."""
    num_samples: int | None = None
    """Training samples of this epoch; None where raygpu does not run the loop."""
    train_s: float | None = None
    """Seconds of training in this epoch, without evaluation."""
    validate_s: float | None = None
    """Seconds of the evaluation after it; None where raygpu does not run the loop."""
    waited_s: float | None = None
    """Seconds of the training in which it waited for samples to be read; None for data in memory."""

    @property
    def samples_per_s(self) -> float | None:
        """Training throughput of the epoch; None if unknown."""
        if self.num_samples is None or not self.train_s:
            return self.metrics.get("samples_per_s")
        return self.num_samples / self.train_s


def mean_rate(epochs: Sequence[EpochResult]) -> float | None:
    """Return the training throughput over several epochs, in samples/s: the last one's own figure where raygpu does not
    run the loop, and None if unknown."""
    samples = sum(epoch.num_samples or 0 for epoch in epochs)
    seconds = sum(epoch.train_s or 0.0 for epoch in epochs)
    if samples and seconds:
        return samples / seconds
    return epochs[-1].samples_per_s if epochs else None


def joint_rate(trainings: Iterable[Sequence[EpochResult]]) -> float | None:
    """Return the training throughput of trainings side by side over the epochs of a report, in samples/s; None if
    unknown. An array becomes narrower, so that each epoch counts with the trials that it had."""
    samples: Counter[int] = Counter()
    rates: dict[int, float] = defaultdict(float)
    own_figures: list[float] = []
    for epochs in trainings:
        own_figures += [rate for rate in [mean_rate(epochs)] if rate is not None and math.isfinite(rate)]
        for each in epochs:
            if each.num_samples and each.train_s:
                samples[each.epoch] += each.num_samples
                rates[each.epoch] += each.num_samples / each.train_s
    if samples:
        return sum(samples.values()) / sum(number / rates[epoch] for epoch, number in samples.items())
    return sum(own_figures) if own_figures else None
