"""Small data sets that tell which of their samples were read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from raygpu import Splits
from raygpu.training.data.columns import columns_of
from raygpu.training.data.samples import Samples


class Rows:
    """Sample `i` is a vector of i, of class i % 3; `reads` lists those that were read."""

    def __init__(self, count: int = 30) -> None:
        self.count = count
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        self.reads.append(row)
        return torch.full((2,), float(row)), row % 3


class Listed(Rows):
    """The same, with a list of all classes."""

    def __init__(self, count: int = 30) -> None:
        super().__init__(count)
        self.targets = [row % 3 for row in range(count)]


def samples_of(splits: Splits, part: str = "train") -> Samples:
    return columns_of(getattr(splits, f"{part}_inputs"))[0].samples


def numbers(inputs: Any) -> list[int]:
    """The numbers of the samples, by their inputs."""
    return [int(each[0]) for each in np.asarray(inputs)]


class OwnGenerator(Rows):
    """Draws from a generator that nobody seeds."""

    generator = np.random.default_rng(0)

    def __getitem__(self, row: int) -> Any:
        return np.array([row, self.generator.random()]), row % 3
