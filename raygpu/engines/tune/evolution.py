"""The members of one worker in their sweep's population: they report at each interval, and carry out its orders.

evolution = Evolution(PopulationClient(actor), epochs, changing, folder, trials)
while (found := evolution.exchange(array, scores, absent)) is None: ...      # others are not there yet
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from raygpu.engines.tune.array_checkpoint import POPULATION
from raygpu.engines.tune.population_actor import PopulationClient, begun_values
from raygpu.records import scratch
from raygpu.records.scratch import fetched
from raygpu.search.population import MemberScores, Orders, Reached
from raygpu.search.trial_record import Change, changed
from raygpu.search.trials import EpochResult, Trial
from raygpu.storage import Storage, StorageError
from raygpu.training.base import ChangingArray
from raygpu.training.hyperparameters import OptimizerSettings

WAIT_S = 0.02
"""Seconds between two questions of a worker that waits for the rest of its population."""


@dataclass(slots=True)
class Member:
    """A member's reports to the population, and the orders that it has carried out."""

    trial: Trial
    begun: Mapping[str, Any]
    """Values at its start, of the hyper-parameters that it may take over."""
    reached: dict[int, Reached] = field(default_factory=dict)
    decided: dict[int, Change | None] = field(default_factory=dict)

    @property
    def changes(self) -> list[Change]:
        """Return the member's changes, in the order of their epochs."""
        return [change for _, change in sorted(self.decided.items()) if change is not None]

    def values(self, epoch: int) -> Mapping[str, Any]:
        """Return the values with which an epoch was trained."""
        return changed(self.begun, (change for change in self.changes if change.epoch < epoch))

    def settings(self) -> OptimizerSettings:
        """Return the settings of the optimizer, those of later epochs included."""
        changes = [{**change.values, "epoch": change.epoch + 1} for change in self.changes]
        return OptimizerSettings.of(self.trial.hyperparameters, changes)


@dataclass(frozen=True, slots=True)
class MemberChanges:
    """Changes of a worker's members at one interval."""

    changes: Mapping[str, Change] = field(default_factory=dict)
    ended: tuple[str, ...] = ()
    """Members that have diverged, and go on no more."""
    lines: tuple[str, ...] = ()
    """Lines on changes that could not be carried out."""
    from_others: bool = False
    """Whether parameters have come from another worker: a checkpoint now makes sure that they are not needed again."""


class Evolution:
    """The members of one worker in their population.

    epochs: after which trials are compared. changing: names of the hyper-parameters that a trial takes over. folder:
    storage of the parameters that trials of different workers give each other.
    """

    def __init__(
        self,
        population: PopulationClient,
        epochs: frozenset[int],
        changing: Sequence[str],
        folder: Storage,
        trials: Sequence[Trial],
    ) -> None:
        self._population, self._epochs, self._folder = population, epochs, folder
        self._changing = tuple(changing)
        self.members = {trial.trial_id: Member(trial, begun_values(trial, changing)) for trial in trials}
        self._since = time.monotonic()
        self._asked: Orders | None = None
        """Orders of the interval at hand, while a donor is waited for."""

    def rescues(self, epoch: int) -> bool:
        """Return whether a trial that has diverged by this epoch may still take over another one's parameters."""
        return any(later >= epoch for later in self._epochs)

    def with_values(self, name: str, result: EpochResult) -> EpochResult:
        """Return an epoch's result with the numbers that it was trained with, as metrics."""
        values = self.members[name].values(result.epoch)
        numbers = {
            key: float(value)
            for key, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        return replace(result, metrics={**result.metrics, **numbers})

    def is_due(self, array: ChangingArray) -> bool:
        """Return whether the array's members have to be compared before their next epoch."""
        return array.epoch in self._epochs and any(
            array.epoch not in self.members[trial.trial_id].decided for trial in array.trials
        )

    def exchange(
        self, array: ChangingArray, score: Callable[[str], float], absent: Sequence[str] = ()
    ) -> MemberChanges | None:
        """Report the members' scores, and carry out what the population orders; None while others are waited for.

        score: of a member at its last epoch. absent: trials of this worker that begin later.
        """
        epoch, names = array.epoch, [trial.trial_id for trial in array.trials]
        if self._asked is None:
            for name in names:
                member = self.members[name]
                member.reached.setdefault(epoch, Reached(score(name), member.values(epoch)))
            reports = [MemberScores(name, self.members[name].reached, self.members[name].decided) for name in names]
            self._asked = self._population.exchange(epoch, reports, absent, time.monotonic() - self._since)
            if self._asked is None:
                return None
            self._give(array, self._asked)
        others = {name: change for name, change in self._asked.changes.items() if change.donor not in names}
        states = {name: self._population.donor(epoch, change.donor) for name, change in others.items()}
        if "coming" in states.values():
            return None
        orders, self._asked, self._since = self._asked, None, time.monotonic()
        lost = [name for name, state in states.items() if state == "lost"]
        changes = {name: change for name, change in orders.changes.items() if name not in lost}
        lost += self._carry_out(array, changes, {name for name in others if name in changes})
        for name in lost:
            self._population.keep(epoch, name)
            changes.pop(name, None)
        for name in names:
            self.members[name].decided[epoch] = changes.get(name)
        lines = tuple(f"{name} keeps its own parameters: those of its donor are lost" for name in lost)
        return MemberChanges(changes, orders.ended, lines, from_others=bool(others))

    def patiently(
        self, array: ChangingArray, score: Callable[[str], float], absent: Sequence[str], *, until_s: float
    ) -> MemberChanges | None:
        """Exchange as `exchange` does, and wait for others until a moment of the monotonic clock; None if they are not
        there by then."""
        while (member_changes := self.exchange(array, score, absent)) is None and time.monotonic() < until_s:
            time.sleep(WAIT_S)
        return member_changes

    def _give(self, array: ChangingArray, orders: Orders) -> None:
        """Keep members' parameters for other workers, and delete what nobody needs any more."""
        for name in orders.save:
            with tempfile.TemporaryDirectory(prefix="donor-", dir=scratch.home()) as folder:
                array.save_member(name, Path(folder))
                (self._folder / str(array.epoch) / name).upload(Path(folder))
        if orders.save:
            self._population.saved(array.epoch, orders.save)
        for epoch in orders.obsolete:
            (self._folder / str(epoch)).remove()

    def _carry_out(self, array: ChangingArray, changes: Mapping[str, Change], from_others: set[str]) -> list[str]:
        """Copy parameters and set new values; return the members whose donor's parameters could not be read."""
        lost = []
        inside = {name: change.donor for name, change in changes.items() if name not in from_others}
        if inside:
            array.copy_members(inside)
        for name, change in changes.items():
            member = self.members[name]
            before = member.settings()
            member.decided[array.epoch] = change
            array.adopt(name, member.settings())
            if name in from_others and not self._loaded(array, name, change):
                array.adopt(name, before)
                lost.append(name)
        return lost

    def _loaded(self, array: ChangingArray, name: str, change: Change) -> bool:
        """Load a donor's parameters from the storage; return False if they are not there."""
        donor_folder = self._folder / str(change.epoch) / change.donor
        try:
            if not donor_folder.is_dir():
                return False
            with fetched(donor_folder) as folder:
                array.load_member(name, folder)
        except StorageError:
            return False
        return True

    # Kept

    def save(self, folder: Path) -> None:
        """Write the members' reports and changes beside their array's checkpoint."""
        state = {
            name: {
                "reached": {str(epoch): asdict(each) for epoch, each in member.reached.items()},
                "decided": {str(epoch): change and asdict(change) for epoch, change in member.decided.items()},
            }
            for name, member in self.members.items()
        }
        (folder / POPULATION).write_text(json.dumps(state))

    def restore(self, folder: Path | None, array: ChangingArray) -> None:
        """Go on from a folder that `save` wrote, None from the beginning; set the members' values in a new array."""
        self._asked, self._since = None, time.monotonic()
        state = (
            json.loads((folder / POPULATION).read_text())
            if folder is not None and (folder / POPULATION).is_file()
            else {}
        )
        for trial in array.trials:
            member, progress = self.members[trial.trial_id], state.get(trial.trial_id, {"reached": {}, "decided": {}})
            member.reached = {int(epoch): Reached(**each) for epoch, each in progress["reached"].items()}
            member.decided = {int(e): Change(**each) if each else None for e, each in progress["decided"].items()}
            if member.changes:
                array.adopt(trial.trial_id, member.settings())
