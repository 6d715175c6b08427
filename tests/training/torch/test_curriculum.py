"""Data sets whose samples change with the epoch that they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raygpu import Splits, dataset_splits
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo
from tests.training.torch.test_read_data import CPU, TRIAL, Linear, Vectors, arrived, numbers, settings, trained


class Stages(Vectors):
    """Vectors that are larger in later epochs."""

    stage = 0

    def set_epoch(self, epoch: int) -> None:
        self.stage = epoch

    def __getitem__(self, row: int) -> Any:
        inputs, target = super().__getitem__(row)
        return inputs * np.float32(self.stage), target


class Curriculum(Linear):
    def data(self) -> Splits:
        return dataset_splits(Stages(40), validation=0.25, **self.options)


def test_a_curriculum_goes_through_its_stages_in_every_mode(tmp_path: Path) -> None:
    """An evaluation, here of the same data set, sees the first stage."""
    wanted, _ = trained(Curriculum())
    assert numbers(trained(Curriculum(num_workers=2), threads=3)[0]) == numbers(wanted)
    torch.set_num_threads(1)
    experiment = Curriculum()
    first, second = (TorchSolo(experiment, arrived(experiment.data()), TRIAL, settings(), CPU) for _ in range(2))
    for epoch in (1, 2, 3):
        batch, _ = first.data.train_batch(epoch, torch.arange(30))
        stages = batch / first.data.train_batch(1, torch.arange(30))[0]  # type: ignore[operator]
        assert stages.mean().item() == pytest.approx(epoch)
    first.run_epoch()
    first.save(tmp_path)
    second.load(tmp_path)
    assert numbers(list(iter(second.run_epoch, None))) == numbers(wanted[1:])
    array = TorchArray(experiment, arrived(experiment.data()), [TRIAL], settings(), width=1, device=CPU)
    for result in wanted:
        assert array.run_epoch()["t0000"].metrics == pytest.approx(result.metrics, rel=1e-4)  # type: ignore[index]
