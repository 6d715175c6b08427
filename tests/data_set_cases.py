"""Experiments on data sets whose samples are read while they train."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from raygpu import KerasExperiment, RayRows, Splits, TorchExperiment, dataset_splits

READS = "READS_FILE"
"""Variable that names a file with a line for each sample that was read."""


class Vectors:
    """Vectors of eight and their classes; each read is noted."""

    def __init__(self, count: int, seed: int, reads: str | None = None) -> None:
        generator = np.random.default_rng(seed)
        self.inputs = generator.standard_normal((count, 8)).astype(np.float32)
        self.classes, self.reads = (self.inputs[:, :3]).argmax(1), reads

    def __len__(self) -> int:
        return len(self.classes)

    def __getitem__(self, row: int) -> Any:
        if self.reads is not None:
            with Path(self.reads).open("a") as file:
                file.write(f"{row}\n")
        return torch.from_numpy(self.inputs[row]), int(self.classes[row])


def noisy(inputs: torch.Tensor) -> torch.Tensor:
    return inputs + 0.1 * torch.randn(inputs.shape)


class Read(TorchExperiment):
    """Kept once read, with noise that is drawn anew in each epoch."""

    def data(self) -> Splits:
        reads = os.environ.get(READS)
        return dataset_splits(Vectors(96, 1, reads), Vectors(32, 2), transform=noisy, cache=True)

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


class ReadByKeras(KerasExperiment):
    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1), Vectors(32, 2))

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        return keras.Sequential([keras.layers.Input((8,)), keras.layers.Dense(3)])


class TransformedForKeras(ReadByKeras):
    def data(self) -> Splits:
        return dataset_splits(Vectors(96, 1), Vectors(32, 2), transform=noisy)


class InRay(Read):
    """The same vectors as rows of Ray Data."""

    def data(self) -> Splits:
        import ray.data

        parts = []
        for vectors in (Vectors(96, 1), Vectors(32, 2)):
            items = [{"x": x, "label": label} for x, label in zip(vectors.inputs, vectors.classes, strict=True)]
            parts.append(RayRows(ray.data.from_items(items, override_num_blocks=2)))
        return dataset_splits(*parts, targets="label")
