"""The parameters with which a training begins are those of its trial, also after a kill before its first checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.config import TrainConfig
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow import warm_start


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "checkpoint.pt").write_text("parameters")
    return tmp_path / "trial"


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    """Of a training that has begun with a warm start."""
    made = RunDirectory.create(tmp_path, "run")
    made.write_run({warm_start.NOTE: True})
    made.write_config(TrainConfig.model_validate({"experiment": "a:B"}), tmp_path, kind="train")
    return made


def test_a_resume_begins_with_the_same_parameters(folder: RunDirectory, trial: Path) -> None:
    begun_with = warm_start.taken(folder, trial)
    again = warm_start.taken(RunDirectory.existing(folder.path, "train"), None)
    assert again == begun_with
    assert again is not None
    assert again.read("checkpoint.pt") == b"parameters"


def test_a_copy_that_was_cut_is_refused(folder: RunDirectory, tmp_path: Path) -> None:
    (folder.checkpoints / ".start").mkdir(parents=True)
    (folder.checkpoints / ".start" / "checkpoint.pt").write_text("param")
    with pytest.raises(BadInput, match=r"no whole copy of the trial's parameters in .*start; begin again with"):
        warm_start.kept(RunDirectory.existing(folder.path, "train"))


def test_with_a_checkpoint_to_go_on_from_nothing_is_refused(folder: RunDirectory) -> None:
    (folder.checkpoints / "training" / "checkpoint_1").mkdir(parents=True)
    kept = warm_start.kept(folder)
    assert kept is not None
    assert not kept.is_dir(), "a worker that needs it fails, and does not begin with fresh parameters"


def test_without_a_warm_start_there_is_none(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "run")
    assert warm_start.taken(folder, None) is None
