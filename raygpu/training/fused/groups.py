"""The choice of a sweep's fused trials: groups of one signature that pass a dry run; the others are trained alone."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from raygpu.config.sections import Precision
from raygpu.errors import one_line
from raygpu.experiment import Experiment, Splits
from raygpu.search.signature import ITS_OWN, Group, Signature, Signatures, differing_names, representatives
from raygpu.search.trials import Trial
from raygpu.training.folds import Folds
from raygpu.training.hyperparameters import READ_BY_RAYGPU, OptimizerSettings

MOST_SIZES = 32
"""Largest number of groups whose models are made once more, to count their parameters."""


class Grouper(Protocol):
    """Decides which trials may share an array, or a device."""

    alone: dict[Signature, str]
    """Signatures that could share an array and do not, each with the reason."""

    def groups(self, trials: Sequence[Trial]) -> list[Group]:
        """Return the trials in groups; each that is not fused has its reason."""

    def may_be_array(self, group: Group) -> bool:
        """Return whether an array of a lone trial is known to train as the trial alone."""

    def refuse(self, trial: Trial, reason: str) -> None:
        """Train trials of this one's signature alone from now on."""

    def refused(self, trial: Trial) -> bool:
        """Return whether trials of this one's signature are trained alone."""


class TorchGrouper:
    """Groups trials by signature after a dry run; remembers the results, since Optuna's trials come a generation at a
    time.

    folder: the start of the experiment's relative paths. folds: of a cross-validation, in which trials share an array
    if their folds have one size.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        precision: Precision = "float32",
        folder: str | Path = ".",
        folds: Folds | None = None,
    ) -> None:
        from raygpu.training.fused import dry_run

        self._dry_run = dry_run
        self._experiment = experiment
        self._splits = splits
        self._folds = folds
        self._precision = precision
        self._folder = Path(folder).absolute()
        self._signatures = Signatures(lambda trial: dry_run.names_read(experiment, trial, splits), dry_run.check)
        self._obstacles: dict[tuple[tuple[str, str], ...], tuple[str | None, frozenset[str]]] = {}
        """The reason of each kind of trials, and the hyper-parameters in which those that were tried differ."""
        self.alone: dict[Signature, str] = {}

    def groups(self, trials: Sequence[Trial]) -> list[Group]:
        """Return the trials in groups, in the order of each group's first trial."""
        with contextlib.chdir(self._folder):
            return self._groups(trials)

    def may_be_array(self, group: Group) -> bool:
        """Return whether an array of a lone trial is known to train as the trial alone: others of its kind have passed
        a dry run."""
        if group.reason != ITS_OWN or group.signature.without_folds in self.alone:
            return False
        reason, tried = self._obstacles.get(_kind(group), (None, None))
        return tried is not None and reason is None

    def refuse(self, trial: Trial, reason: str) -> None:
        """Train trials of this one's signature alone from now on."""
        self.alone[self._signature(trial)] = reason

    def refused(self, trial: Trial) -> bool:
        """Return whether trials of this one's signature are trained alone."""
        return self._signature(trial) in self.alone

    def _signature(self, trial: Trial) -> Signature:
        with contextlib.chdir(self._folder):
            (signature,) = self._signatures.of_each([trial])
        if isinstance(signature, Exception):
            raise signature
        return signature

    def _groups(self, trials: Sequence[Trial]) -> list[Group]:
        groups: dict[Signature, Group] = {}
        faulty: list[Group] = []
        for trial, signature in zip(trials, self._signatures.of_each(trials), strict=True):
            if isinstance(signature, Exception):
                faulty.append(Group(Signature(()), [trial], one_line(signature)))
            else:
                fold_signature = self._with_fold(signature, trial)
                groups.setdefault(fold_signature, Group(fold_signature)).trials.append(trial)
        for group in groups.values():
            group.reason = self._obstacle(group) or self.alone.get(group.signature.without_folds)
        if 1 < len(groups) <= MOST_SIZES:  # one kind alone is compared with no other
            for group in groups.values():
                group.num_parameters = self._dry_run.num_parameters(self._experiment, group.trials[0])
        return [*groups.values(), *faulty]

    def _with_fold(self, signature: Signature, trial: Trial) -> Signature:
        if self._folds is None or trial.fold is None:
            return signature
        return replace(signature, fold_samples=self._folds.sizes(trial.fold))

    def _obstacle(self, group: Group) -> str | None:
        if len(group.trials) == 1:
            return ITS_OWN
        key = _kind(group)
        chosen = representatives(group.trials, group.signature)
        names = differing_names(chosen)
        reason, tried = self._obstacles.get(key, (None, None))
        if tried is None or (reason is None and not names <= tried):  # trials that differ in more than those before
            reason = self._dry_run.obstacle(self._experiment, self._splits, chosen, self._precision)
            self._obstacles[key] = reason, names | (tried or frozenset())
        return reason


def _kind(group: Group) -> tuple[tuple[str, str], ...]:
    """Return what a dry run of a group's trials depends on."""
    # Each optimizer is tested against torch.optim's; what a model does may depend on the size of a batch.
    settings = OptimizerSettings.of(group.trials[0].hyperparameters)
    size = str(settings.parts_of(settings.batch_size))
    return (*(value for value in group.signature.values if value[0] not in READ_BY_RAYGPU), ("batch_size", size))


class KerasGrouper:
    """Groups all Keras trials together: they need not be alike to share a process whose device is split between
    them."""

    def __init__(self) -> None:
        self.alone: dict[Signature, str] = {}

    def refuse(self, trial: Trial, reason: str) -> None:
        """Fail: on a split device each trial has a program of its own."""
        raise AssertionError("trials that share a split device are trained each by its own program")

    def refused(self, trial: Trial) -> bool:
        """Return False: no trial is refused."""
        return False

    def may_be_array(self, group: Group) -> bool:
        """Return False: no trial is alone."""
        return False

    def groups(self, trials: Sequence[Trial]) -> list[Group]:
        """Return all trials in one group."""
        return [Group(Signature(()), list(trials))] if trials else []
