"""The content of `best.toml`: a trial as a TrainConfig."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SweepConfig, TrainConfig
from raygpu.records.best_trial import training_values, write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.scoring import Scoring
from raygpu.search.trial_record import Status, TrialRecord
from raygpu.search.trials import EpochResult, Trial

SPACE = {"lr": {"uniform": [0, 1]}, "betas": {"choice": [[0.9, 0.99]]}, "flag": {"choice": [True]}}
TRIAL = Trial("t0003", 17, {"lr": 0.25, "betas": [0.9, 0.99], "flag": True, "name": "1"})


def config(**values: Any) -> SweepConfig:
    return SweepConfig.model_validate(
        {"experiment": "a:B", "trials": 4, "epochs": 6, "metric": "loss", "space": SPACE} | values
    )


def test_a_file_has_what_the_trial_was(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "mine")
    record = TrialRecord(TRIAL, score=0.5)
    record.scores.take(Scoring("loss", maximize=False), EpochResult(4, {"loss": 0.5}))
    write_best(folder, config(direction="min", seed=3), record)
    values = tomllib.loads(folder.best_toml.read_text())
    assert values == {
        "experiment": "a:B",
        "metric": "loss",
        "direction": "min",
        "epochs": 6,
        "seed": 17,
        "hyperparameters": dict(TRIAL.hyperparameters),
        "source": {
            "sweep": "mine",
            "trial_id": "t0003",
            "data_seed": 3,
            "score": 0.5,
            "epoch": 4,
            "score_of": "last epoch",
            "metric": "loss",
            "direction": "min",
        },
    }
    assert TrainConfig.model_validate(values).hyperparameters == TRIAL.hyperparameters


@pytest.mark.parametrize(
    ("status", "epochs", "ended"),
    [
        ("stopped", 3, "stopped at epoch 3 of 6"),
        ("interrupted", 3, "interrupted at epoch 3 of 6"),
        ("stopped", 6, None),
        ("finished", 3, None),
    ],
    ids=["stopped", "interrupted", "stopped at its end", "ended by itself"],
)
def test_a_file_says_where_its_trial_ended_before_its_last_epoch(
    tmp_path: Path, status: Status, epochs: int, ended: str | None
) -> None:
    folder = RunDirectory.create(tmp_path, "mine")
    write_best(folder, config(direction="min"), TrialRecord(TRIAL, status, score=0.3, epochs=epochs))
    values = tomllib.loads(folder.best_toml.read_text())
    assert (values["epochs"], values["source"].get("ended")) == (6, ended)


def test_a_file_has_the_settings_on_which_the_training_depends(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "mine")
    own = config(direction="min", gpu={"precision": "bf16"}, data={"samples_per_epoch": 64, "synthetic": True})
    write_best(folder, own, TrialRecord(TRIAL, score=0.5))
    values = tomllib.loads(folder.best_toml.read_text())
    assert values["gpu"] == {"precision": "bf16"}
    assert values["data"] == {"samples_per_epoch": 64, "synthetic": True}
    read = TrainConfig.model_validate(values)
    assert read.gpu.precision == "bf16"
    assert read.data.samples_per_epoch == 64


@pytest.mark.parametrize("score", [None, 0.5])
def test_what_is_not_known_is_left_out(score: float | None) -> None:
    found = training_values(config(data={"synthetic": True}), "mine", TRIAL, score=score, score_epoch=None, epochs=None)
    assert "epochs" not in found
    source = {"sweep": "mine", "trial_id": "t0003", "data_seed": 0, "data": "synthetic"}
    rated = {"score": 0.5, "score_of": "last epoch", "metric": "loss", "direction": "min"}
    assert found["source"] == source | (rated if score else {})


def test_a_scripts_trial_has_its_command_line(tmp_path: Path) -> None:
    command = "python train.py --lr {lr} --name {name} --epochs {epochs} --out 'my {trial_id}.pt'"
    found = training_values(
        config(experiment=None, command=command), "mine", TRIAL, score=None, score_epoch=None, epochs=9
    )
    line = "python train.py --lr 0.25 --name 1 --epochs 6 --out 'my t0003.pt'"
    assert found["source"]["command_line"] == line
    assert TrainConfig.model_validate(found).command == command
