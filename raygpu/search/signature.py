"""Groups of trials that can share an array: those of equal signature. Pure; the caller tells what a program reads.

A signature is found without a declaration. Code that reads the hyper-parameters `names` of one trial reads the same
names of every trial that has the same values there, so the code is run once for each signature and not for each trial.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from raygpu.search.hyperparameters import ALL_NAMES
from raygpu.search.trials import Trial

Reader = Callable[[Trial], frozenset[str]]
"""Function that returns the names of the hyper-parameters that shape a trial's program."""
Key = tuple[tuple[str, str], ...]
ABSENT = "absent"
ITS_OWN = "a signature of its own"
ENOUGH_RUNS = 20
"""Runs of the experiment's code after which the names that all of them read count as known."""
MAX_MEMBERS = 1024
"""Largest number of members of an array: its results travel together, and a lost worker's trials are trained again."""


@dataclass(frozen=True, slots=True)
class Signature:
    """The hyper-parameters that shape the program of a group's trials, with their values."""

    values: Key
    """Values by name, as text."""
    fold_samples: tuple[int, int] | None = None
    """Training and validation samples of the trials' folds: steps are of one shape where these are equal. None without
    cross-validation."""

    def __str__(self) -> str:
        return " ".join(f"{name}={text}" for name, text in self.values if text != ABSENT and name != ALL_NAMES)

    @property
    def without_folds(self) -> Signature:
        """The signature of these trials in all folds."""
        return Signature(self.values)

    @classmethod
    def of(cls, trial: Trial, names: Iterable[str]) -> Signature:
        """Return a trial's signature. names: the hyper-parameters that shape its program."""
        return cls(_key(trial, names))

    def is_of(self, trial: Trial) -> bool:
        """Return whether a trial has these values of the hyper-parameters."""
        return _key(trial, (name for name, _ in self.values)) == tuple(sorted(self.values))


@dataclass(slots=True)
class Group:
    """Trials of one signature."""

    signature: Signature
    trials: list[Trial] = field(default_factory=list)
    reason: str | None = None
    """Reason why the trials are trained alone; None if they are fused."""
    num_parameters: int | None = None
    """Parameters of a trial's model; None if unknown."""


class Signatures:
    """Finds trials' signatures, running the experiment's code once for each.

    check: raises for a trial that is faulty by itself.
    If all runs so far have read a name, a trial that is the only one with its value there needs no run: its signature
    is its own.
    """

    def __init__(self, read: Reader, check: Callable[[Trial], None] = lambda trial: None) -> None:
        self._read = read
        self._check = check
        self._known: dict[frozenset[str], set[Key]] = {}
        self._common: frozenset[str] = frozenset()
        self._num_runs = 0
        self._counts: dict[str, Counter[str]] = {}
        """Number of trials at hand with each value, by hyper-parameter."""

    def of_each(self, trials: Sequence[Trial]) -> Iterator[Signature | Exception]:
        """Yield the signature of each trial, or the exception that `check` or the experiment's code raised."""
        names = {name for trial in trials for name in trial.hyperparameters}
        self._counts = {name: Counter(_key(trial, (name,))[0][1] for trial in trials) for name in names}
        for trial in trials:
            try:
                self._check(trial)
                yield self._of(trial)
            except Exception as error:  # noqa: BLE001 - whatever it is, the trial shows it as its own result
                yield error

    def _of(self, trial: Trial) -> Signature:
        for names, keys in self._known.items():
            if (key := _key(trial, names)) in keys:
                return Signature(key)
        if self._num_runs >= ENOUGH_RUNS:
            key = _key(trial, self._common)
            if any(self._counts[name][value] == 1 for name, value in key if name in self._counts):
                return Signature(key)
        names = self._read(trial)
        self._common = names if not self._num_runs else self._common & names
        self._num_runs += 1
        key = _key(trial, names)
        self._known.setdefault(names, set()).add(key)
        return Signature(key)


def _key(trial: Trial, names: Iterable[str]) -> Key:
    hp = trial.hyperparameters
    values = {name: repr(hp[name]) if name in hp else ABSENT for name in sorted(names)}
    if ALL_NAMES in values:
        values[ALL_NAMES] = " ".join(sorted(hp))
    return tuple(values.items())


def differing_names(trials: Sequence[Trial]) -> frozenset[str]:
    """Return the hyper-parameters in which these trials differ; `ALL_NAMES` too if they do not have the same ones."""
    names = {name for trial in trials for name in trial.hyperparameters} | {ALL_NAMES}
    return frozenset(name for name in names if len({_key(trial, (name,)) for trial in trials}) > 1)


def representatives(trials: Sequence[Trial], signature: Signature, most: int = 4) -> list[Trial]:
    """Choose at most `most` trials of a group that differ in every value outside the signature that differs at all."""
    shared = {name for name, _ in signature.values}
    names = {name for trial in trials for name in trial.hyperparameters} - shared
    first = trials[0]

    def different(trial: Trial) -> set[str]:
        """Return the hyper-parameters in which a trial differs from the first one."""
        return {n for n in names if repr(trial.hyperparameters.get(n)) != repr(first.hyperparameters.get(n))}

    chosen, covered = [first], set[str]()
    while len(chosen) < most and len(trials) > 1:
        best = max(trials[1:], key=lambda trial: len(different(trial) - covered))
        if len(chosen) > 1 and not different(best) - covered:
            break
        chosen.append(best)
        covered |= different(best)
    return chosen


def differing(groups: Sequence[Group]) -> list[str]:
    """Return the names of the signature in whose values groups differ, the most various first."""
    values: dict[str, set[str]] = {}
    for group in groups:
        for name, text in group.signature.values:
            values.setdefault(name, set()).add(text)
    various = [(len(texts), name) for name, texts in values.items() if len(texts) > 1]
    return [name for _, name in sorted(various, reverse=True)]


def cut(groups: Mapping[Signature, int], slots: int, most: int = MAX_MEMBERS) -> dict[Signature, int]:
    """Return the number of arrays to cut each group into, so that all slots have work.

    groups: number of trials by signature. slots: arrays that can run at once. most: members of an array.
    """
    numbers = {signature: math.ceil(count / most) for signature, count in groups.items()}
    idle = min(slots, sum(groups.values())) - sum(numbers.values())
    for _ in range(idle):  # the group whose arrays are the widest gets one more
        signature = max(groups, key=lambda own: groups[own] / numbers[own])
        numbers[signature] += 1
    return numbers


def even(count: int, num_parts: int) -> list[range]:
    """Cut 0 .. count - 1, in order, into parts whose sizes differ by one at most; no part is empty."""
    bounds = [round(i * count / num_parts) for i in range(num_parts + 1)]
    return [range(start, end) for start, end in itertools.pairwise(bounds) if end > start]


def array_members(groups: Sequence[Group], slots: int, members: int | None = None) -> list[tuple[str, ...]]:
    """Return the trials of each array of these groups, the widest array first. slots: arrays that can run at once.

    members: trials of an array at most, by default MAX_MEMBERS. With it, all groups have their turn before any has its
    second one: the time may not be enough for all arrays.
    """
    fused = {group.signature: group for group in groups if group.reason is None}
    counts = {signature: len(group.trials) for signature, group in fused.items()}
    numbers = cut(counts, slots, members or MAX_MEMBERS)
    of_groups = []
    for signature, group in fused.items():
        names = [trial.trial_id for trial in group.trials]
        of_groups.append([tuple(names[part.start : part.stop]) for part in even(len(names), numbers[signature])])
    in_turns = [array for turn in itertools.zip_longest(*of_groups) for array in turn if array is not None]
    return in_turns if members is not None else sorted(in_turns, key=lambda array: -len(array))
