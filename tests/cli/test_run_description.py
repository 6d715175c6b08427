"""Descriptions of runs for MLflow's pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from raygpu.cli.run_description import measurement_description, sweep_description, training_description
from raygpu.config import PackConfig, SweepConfig, TrainConfig
from raygpu.records.run_directory import RunDirectory

CONFIG = SweepConfig.model_validate(
    {"experiment": "a:B", "metric": "accuracy", "trials": 4, "epochs": 9, "space": {"lr": 0.1}}
)
TRAINING = TrainConfig.model_validate(
    {
        "experiment": "a:B",
        "metric": "accuracy",
        "epochs": 9,
        "hyperparameters": {"lr": 0.1},
        "source": {"sweep": "digits", "trial_id": "t0006"},
    }
)
PLAN = ["plan: process mode, 2 per GPU", "plan: predicted time of the trials"]
FOLDER = RunDirectory(Path("/runs/my sweep"))
SUMMARY: dict[str, Any] = {
    "metric": "accuracy",
    "data": "real",
    "best": {"trial_id": "t0002", "score": 0.98061, "hyperparameters": {"lr": 0.1}},
    "completed": 3,
    "stopped_early": 1,
    "diverged": 0,
    "failed": 0,
    "interrupted": 0,
    "wall_s": 61.0,
    "gpus": [{"samples_per_s": 100.0}, {"samples_per_s": None}],
}


def test_a_sweep_that_runs_has_its_plan_and_how_to_go_on() -> None:
    text = sweep_description(CONFIG, PLAN, FOLDER, None)
    assert text.startswith(
        "**Sweep** of `a:B` by accuracy, the highest wins.\n\nIt runs.\n\n**Plan**\n\n- process mode"
    )
    assert "- predicted time" in text
    assert "raygpu sweep --resume '/runs/my sweep'" in text


def test_an_ended_sweep_has_its_best_trial_first() -> None:
    text = sweep_description(CONFIG, PLAN, FOLDER, SUMMARY)
    second, third = text.split("\n\n")[1:3]
    assert second == "**Best trial** `t0002`: accuracy 0.98061, with lr=0.1."
    assert third == "**Trials**: 3 finished, 1 stopped early, in 1 min 1 s, 100 samples/s on 1 GPU."
    assert text.endswith("```sh\nraygpu train --from '/runs/my sweep'\nraygpu report '/runs/my sweep'\n```")


def test_the_best_trial_of_a_script_is_run_by_its_command_line() -> None:
    best = SUMMARY["best"] | {"command_line": "python train.py --lr 0.1"}
    text = sweep_description(CONFIG, PLAN, FOLDER, SUMMARY | {"best": best})
    assert "```sh\npython train.py --lr 0.1\nraygpu report" in text


def test_a_best_trial_that_was_stopped_is_said_in_the_descriptions_of_sweep_and_training() -> None:
    ended = {"ended": "stopped at epoch 3 of 9"}
    text = sweep_description(CONFIG, PLAN, FOLDER, SUMMARY | {"best": SUMMARY["best"] | ended})
    assert "with lr=0.1. Trial `t0002` was stopped at epoch 3 of 9." in text
    training = TRAINING.model_copy(update={"source": TRAINING.source | ended})
    first = training_description(training, FOLDER, None).split("\n\n")[0]
    assert first.endswith("from trial `t0006` of the sweep `digits`, which was stopped at epoch 3 of 9.")


def test_what_is_missing_is_said() -> None:
    lost = SUMMARY | {"best": None, "completed": 0, "stopped_early": 0, "failed": 2, "interrupted": 2}
    text = sweep_description(CONFIG, [], FOLDER, lost)
    assert "**No trial has a finite accuracy.**" in text
    assert "raygpu train" not in text
    assert "raygpu sweep --resume" in text
    assert "**Plan**" not in text
    assert "The data is synthetic" in sweep_description(CONFIG, [], FOLDER, SUMMARY | {"data": "synthetic"})


def test_a_training_names_its_trial() -> None:
    assert "**Training** of `a:B`, from trial `t0006` of the sweep `digits`." in training_description(
        TRAINING, FOLDER, None
    )
    summary = {"best": {"score": 0.9, "epoch": 3}, "epochs": 5, "wall_s": 4.0, "tracking": {"status": "interrupted"}}
    text = training_description(TRAINING, FOLDER, summary)
    assert "**Best** accuracy 0.9 after epoch 3.\n\n5 of 9 epochs in 4 s." in text
    assert text.endswith("```sh\nraygpu train --resume '/runs/my sweep'\nraygpu report '/runs/my sweep'\n```")


def test_a_measurement_has_its_verdict() -> None:
    config = PackConfig.model_validate({"experiment": "a:B", "space": {"lr": 0.1}})
    assert measurement_description(config, FOLDER, ["8 at once", "", "2.1x"]) == (
        "**Trainings that share a GPU** of `a:B`.\n\n- 8 at once\n- 2.1x\n\n"
        "**Go on**\n\n```sh\nraygpu report '/runs/my sweep'\n```"
    )
