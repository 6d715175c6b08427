"""A checkpoint within an epoch, taken up where the epoch has other steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.training.distributed.ranks import ParallelSettings
from tests.models import Mlp, few
from tests.training.distributed.parts import training

HP = {"hidden": 16, "lr": 0.05, "batch_size": 10}


@pytest.mark.parametrize(("taken", "left_out"), [(1, []), (2, ["2"])])
def test_samples_of_a_last_batch_that_joins_a_step_taken_before_are_told(
    taken: int, left_out: list[str], tmp_path: Path
) -> None:
    """Of 22 samples in batches of 10, the last two are a step of their own, or join the second."""
    own = training(Mlp(), few(22), HP, ParallelSettings(10))
    own.take_steps(taken)
    own.save(tmp_path)
    again = training(Mlp(), few(22), HP, ParallelSettings(10, least=3))  # as over three devices
    again.load(tmp_path)
    told = [note.split()[2] for note in again.notes if "training samples of epoch 1 are left out" in note]
    assert told == left_out
    progress = again.advance()
    assert progress is not None
    assert (progress.epoch, progress.step, progress.steps) == (1, 2, 2)
    assert progress.result is not None


def test_an_epoch_that_begins_anew_tells_of_the_steps_that_stay_counted(tmp_path: Path) -> None:
    own = training(Mlp(), few(40), HP, ParallelSettings(10))
    own.take_steps(2)
    own.save(tmp_path)
    again = training(Mlp(), few(30), HP, ParallelSettings(10))
    again.load(tmp_path)
    assert again.step == 0
    assert again.notes[-1].endswith(
        "begins anew; its 2 steps so far stay in the parameters, and counted by a scheduler of the experiment's own"
    )
