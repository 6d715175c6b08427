"""A part of scikit-learn's digits, for experiments of any framework: this module imports none."""

from __future__ import annotations

from functools import cache

import numpy as np

from experiments.digits import digits
from raygpu.experiment import Splits

NUM_TRAIN, NUM_VALIDATION = 200, 64


@cache
def few(num_train: int = NUM_TRAIN, num_validation: int = NUM_VALIDATION) -> Splits:
    """The first samples of digits."""
    whole = digits()
    return Splits(
        whole.train_inputs[:num_train],  # type: ignore[index]
        whole.train_targets[:num_train],  # type: ignore[index]
        whole.validation_inputs[:num_validation],  # type: ignore[index]
        whole.validation_targets[:num_validation],  # type: ignore[index]
    )


def halves() -> Splits:
    """The same samples as two inputs by name."""
    part = few()
    train, validation = ({"left": x[:, :32], "right": np.ascontiguousarray(x[:, 32:])} for x in
                         (np.asarray(part.train_inputs), np.asarray(part.validation_inputs)))  # fmt: skip
    return Splits(train, part.train_targets, validation, part.validation_targets)
