"""Cross-validation: the training and validation data of a sweep as one pool, cut into folds.

folds = Folds.of(splits, num_folds=5, seed=0)
folds.train_rows(2)                 # rows of the pool that the training of fold 2 trains on
folds.validation(2)                 # inputs and targets that it is validated on, a view of the pool

The pool's samples lie fold after fold, so the validation data of a fold is a slice of it. The pool exists once on each
node, in the object store: a torch training reads its samples from there, by their rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from raygpu.experiment import Arrays, Splits, class_labels, num_samples, part_rows, take
from raygpu.search.trials import Trial


@dataclass(frozen=True, slots=True)
class Folds:
    """The pooled data of a cross-validation. A training of a fold trains on the others and is validated on it."""

    inputs: Arrays
    targets: Arrays
    starts: tuple[int, ...]
    """First row of each fold in the pool, and the number of all rows."""
    chosen: tuple[np.ndarray, ...] = ()
    """Rows that the training of each fold trains on, if a fraction of the data is wanted; else empty."""

    @classmethod
    def of(cls, splits: Splits, num_folds: int, seed: int, fraction: float = 1.0) -> Folds:
        """Pool the training and validation data, and cut it into folds, stratified by class where targets are whole
        numbers.

        fraction: share of each fold's training data, above 0 and at most 1, drawn by the seed; the validation data
        stays whole. The test data has no part in it. Raises ValueError with too few samples, of a class or in all.
        """
        pairs = ((splits.train_inputs, splits.validation_inputs), (splits.train_targets, splits.validation_targets))
        targets = _joined(*pairs[1])
        order, starts = _cut(targets, num_folds, seed)
        inputs, targets = take(_joined(*pairs[0]), order), take(targets, order)
        folds = cls(inputs, targets, starts)
        if fraction >= 1.0:
            return folds
        every = [folds.train_rows(fold) for fold in range(num_folds)]
        return cls(
            inputs, targets, starts, tuple(rows[part_rows(take(targets, rows), fraction, seed)] for rows in every)
        )

    @property
    def num_folds(self) -> int:
        """Number of folds."""
        return len(self.starts) - 1

    def held(self, fold: int) -> slice:
        """Return the rows of a fold, which validate its training."""
        return slice(self.starts[fold], self.starts[fold + 1])

    def num_train(self, fold: int) -> int:
        """Return the number of samples that the training of a fold trains on."""
        return len(self.chosen[fold]) if self.chosen else self.starts[-1] - self.num_validation(fold)

    def num_validation(self, fold: int) -> int:
        """Return the number of samples that validate the training of a fold."""
        return self.starts[fold + 1] - self.starts[fold]

    def sizes(self, fold: int) -> tuple[int, int]:
        """Return the numbers of training and of validation samples of a fold."""
        return self.num_train(fold), self.num_validation(fold)

    def train_rows(self, fold: int, order: np.ndarray | None = None) -> np.ndarray:
        """Return the rows that the training of a fold trains on, ascending, or in an order of its samples.

        order: numbers of training samples, from 0 to before `num_train(fold)`.
        """
        order = np.arange(self.num_train(fold)) if order is None else order
        if self.chosen:
            return self.chosen[fold][order]
        return np.where(order < self.starts[fold], order, order + self.num_validation(fold))

    def validation(self, fold: int) -> tuple[Arrays, Arrays]:
        """Return inputs and targets of the validation samples of a fold: views of the pool."""
        return take(self.inputs, self.held(fold)), take(self.targets, self.held(fold))

    def split(self, fold: int) -> Splits:
        """Return the data of one fold's training; training samples are copied, unless they lie side by side."""
        start, end = self.starts[fold], self.starts[fold + 1]
        rows: np.ndarray | slice = self.train_rows(fold)
        if not self.chosen and (start == 0 or end == self.starts[-1]):
            rows = slice(end, None) if start == 0 else slice(0, start)
        return Splits(take(self.inputs, rows), take(self.targets, rows), *self.validation(fold))


Data: TypeAlias = Splits | Folds
"""Data of a sweep's trials: one split for all, or folds, of which each trial names one."""


def require_fold(data: Data, trials: Sequence[Trial]) -> None:
    """Raise ValueError for a trial of a fold without folds, and for one without a fold where there are folds.

    Either would train on samples that validate it in another trial of its set, unnoticed.
    """
    for trial in trials:
        if isinstance(data, Folds) != (trial.fold is not None):
            has = f"is of fold {trial.fold}" if trial.fold is not None else "is of no fold"
            cut = f"is cut into {data.num_folds} folds" if isinstance(data, Folds) else "is not cut into folds"
            raise ValueError(f"trial {trial.trial_id} {has}, and the data {cut}")


def splits_of(data: Data, trial: Trial) -> Splits:
    """Return the training and validation data of a trial. Raises ValueError as `require_fold` does."""
    require_fold(data, [trial])
    if isinstance(data, Splits):
        return data
    assert trial.fold is not None
    return data.split(trial.fold)


def _joined(train: Arrays, validation: Arrays) -> Arrays:
    """Concatenate the samples of training and validation data."""
    if isinstance(train, Mapping):
        assert isinstance(validation, Mapping)
        return {name: np.concatenate([array, validation[name]]) for name, array in train.items()}
    assert not isinstance(validation, Mapping)
    return np.concatenate([train, validation])


def _cut(targets: Arrays, num_folds: int, seed: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """Return the samples' order, fold after fold, and the start of each fold with the end of the last one."""
    from sklearn.model_selection import KFold, StratifiedKFold

    count, labels = num_samples(targets), class_labels(targets)
    if num_folds > count:
        raise ValueError(f"{num_folds} folds of {count} training and validation samples; each needs at least one")
    if labels is not None:
        classes, numbers = np.unique(labels, return_counts=True)
        if (fewest := numbers.min()) < num_folds:
            raise ValueError(
                f"{num_folds} folds need {num_folds} samples of each class, and class {classes[numbers.argmin()]} has"
                f" {fewest} of {count} training and validation samples; targets that are no classes are given as floats"
            )
    kind = KFold if labels is None else StratifiedKFold
    cut = kind(num_folds, shuffle=True, random_state=seed).split(np.zeros(count), labels)
    fold_rows = [part for _, part in cut]
    starts = np.cumsum([0, *(len(part) for part in fold_rows)])
    return np.concatenate(fold_rows), tuple(int(start) for start in starts)
