"""A function whose score rises and then falls, as that of the experiments in `best_cases`, and without torch."""

from __future__ import annotations

from typing import Any

import numpy as np

import raygpu
from raygpu import Splits

STEPS = 4
"""In an epoch."""


def value(lr: float, epoch: int) -> float:
    """The number after an epoch."""
    return lr * STEPS * epoch


def score(lr: float, epoch: int) -> float:
    """The best one is 0."""
    return -((value(lr, epoch) - 1) ** 2)


def constant() -> Splits:
    ones = np.ones((STEPS * 4, 1), dtype=np.float32)
    return Splits(ones, ones, ones[:4], ones[:4])


def function(config: dict[str, Any]) -> None:
    """Saves each epoch's number, or with `every` each so many epochs."""
    for epoch in range(1, config["epochs"] + 1):
        if epoch % config.get("every", 1) == 0:
            raygpu.checkpoint(value(config["lr"], epoch))
        raygpu.report(score=score(config["lr"], epoch))
