"""Ids of trials that are read from files become folders only if they are ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.config.sections import TrackingSection
from raygpu.errors import BadInput
from raygpu.records.best_trial import write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.promotion import promoted


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "night")
    config = SweepConfig.model_validate({"experiment": "tests.cases:ramp", "trials": 1, "epochs": 1, "space": {"x": 1}})
    made.write_config(config, tmp_path)
    write_best(made, config, TrialRecord(Trial("t0000", 0, {"x": 1}), "finished"))
    return made


@pytest.mark.parametrize("trial_id", ["../../precious", "/tmp/precious", ".", "t0000/..", "t0000\\n", ""])
def test_a_path_in_place_of_an_id_is_refused(folder: RunDirectory, trial_id: str) -> None:
    precious = folder.path.parent / "precious"
    precious.mkdir()
    (precious / "file").touch()
    text = folder.best_toml.read_text().replace('"t0000"', f'"{trial_id}"')
    folder.best_toml.write_text(text)
    with pytest.raises(BadInput, match=r"best\.toml: source\.trial_id: read .*; allowed: a trial's id, as t0003"):
        promoted(str(folder.path), TrackingSection, True)
    with pytest.raises(BadInput, match="trial_id: read"):
        folder.checkpoint(trial_id)
    assert (precious / "file").exists()


def test_an_id_is_taken(folder: RunDirectory) -> None:
    (folder.checkpoints / "t0000").mkdir(parents=True)
    assert promoted(str(folder.path), TrackingSection, True).checkpoint == folder.checkpoints / "t0000"


def test_a_training_counts_its_epochs_as_the_sweep_did(folder: RunDirectory, tmp_path: Path) -> None:
    assert "data" not in promoted(str(folder.path), TrackingSection, False).values
    config = SweepConfig.model_validate(
        {
            "experiment": "tests.cases:ramp", "trials": 1, "epochs": 1, "space": {"x": 1},
            "data": {"samples_per_epoch": 500},
        }
    )  # fmt: skip
    folder.write_config(config, tmp_path)
    assert promoted(str(folder.path), TrackingSection, False).values["data"] == {"samples_per_epoch": 500}


@pytest.mark.parametrize("text", ["", "source = 1", "[source]"])
def test_a_best_trial_without_an_id_is_refused(folder: RunDirectory, text: str) -> None:
    folder.best_toml.write_text(text)
    with pytest.raises(BadInput, match=r"source\.trial_id: read None"):
        promoted(str(folder.path), TrackingSection, False)
