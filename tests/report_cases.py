"""Made-up runs for the report: their folders, as a sweep or a training leaves them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from raygpu.records import trials_csv
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import Timeline
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial

ACTIVATIONS = ("relu", "gelu")


def record(
    index: int, score: float | None, status: str = "finished", *, diverged: bool = False, **hp: Any
) -> TrialRecord:
    """Return the record of a trial that has ended."""
    values = hp or {
        "lr": 10 ** -(index % 4 + 0.5),
        "hidden": 32 * (index % 3 + 1),
        "activation": ACTIVATIONS[index % 2],
    }
    made = TrialRecord(Trial(Trial.name(index), index, values), scores=TrialScores(last_epoch=3))
    made.status, made.score, made.epochs, made.gpu_index = status, score, 3, index % 2  # type: ignore[assignment]
    made.samples_per_s, made.diverged = 1000.0 + index, diverged
    return made


def records(number: int) -> list[TrialRecord]:
    """Return trials whose score falls with the learning rate; every fifth was stopped, the last one failed."""
    made = [record(i, 0.5 + (i % 4) / 10 + i / 1000, "stopped" if i % 5 == 4 else "finished") for i in range(number)]
    made[-1].status, made[-1].score = "failed", None
    return made


def sweep_folder(folder: Path, number: int = 20, trials: Sequence[TrialRecord] | None = None) -> RunDirectory:
    """Write the folder of a sweep of so many trials on two GPUs."""
    trials = records(number) if trials is None else trials
    run = folder_of(folder, "sweep", {"trials": len(trials), "metric": "accuracy", "direction": "max", "space": {}})
    trials_csv.write(run.trials_csv, trials)
    timeline = Timeline(run.timeline, "accuracy")
    for each in trials:
        name = each.trial.trial_id
        timeline.hold(name, name, [name], 0.5)
        timeline.place(name, each.gpu_index)
        for epoch in range(1, each.epochs + 1):
            metrics = {"validation/accuracy": (each.score or 0.1) * epoch / 3, "train/loss": 1 / epoch}
            timeline.epochs(name, [EpochResult(epoch, metrics)])
        timeline.release(name, "error" if each.status == "failed" else "complete")
    for index in range(2):
        timeline.gpu(index, {"samples_per_s": 2000.0, "memory_gib": 3.5})
    timeline.close()
    best = max((each for each in trials if each.score is not None), key=lambda each: each.score or 0.0, default=None)
    run.write_summary(_summary(run.name, trials, best))
    return run


def folder_of(folder: Path, kind: str, config: dict[str, Any]) -> RunDirectory:
    folder.mkdir(parents=True)
    run = RunDirectory(folder)
    run.config.write_text(tomli_w.dumps({"name": folder.name, "experiment": "my.code:Net", "epochs": 3} | config))
    run.run.write_text(json.dumps({"kind": kind, "source_folder": str(folder)}))
    return run


def _summary(name: str, trials: Sequence[TrialRecord], best: TrialRecord | None) -> dict[str, Any]:
    counts = {status: sum(each.status == status for each in trials) for status in ("finished", "stopped", "failed")}
    described = best and {"trial_id": best.trial.trial_id, "score": best.score, "epoch": 3}
    return {
        "name": name,
        "mode": "process",
        "metric": "accuracy",
        "data": "real",
        "num_trials": len(trials),
        "completed": counts["finished"],
        "diverged": 0,
        "stopped_early": counts["stopped"],
        "failed": counts["failed"],
        "interrupted": 0,
        "common_failure": None,
        "retries": 1,
        "out_of_memory": 0,
        "wall_s": 12.5,
        "command_s": 20.0,
        "plan": {"fraction": 0.5, "trials_per_gpu": 2, "reason": "gpu.fraction 0.5"},
        "predicted": {
            "source": "measured now",
            "chosen": "2 at once",
            "wall_s": {"2 at once": 11.0, "one at a time": 19.0},
            "memory_gib": {"2 at once": 4.0, "one at a time": 2.0},
        },
        "best": described,
        "gpus": [
            {
                "index": index,
                "uuid": None,
                "name": "made-up GPU",
                "samples_per_s": 2000.0,
                "memory_gib": 3.5,
                "util_pct": 80.0,
            }
            for index in range(2)
        ],
        "stages_s": {"start": 1.0, "ray": 6.5, "trials": 12.5},
        "arrays_s": {},
        "tracking": {"status": "finished"},
    }


def training_folder(folder: Path) -> RunDirectory:
    """Write the folder of a production training on two unequal GPUs."""
    run = folder_of(folder, "train", {"metric": "accuracy", "direction": "max", "workers": "all"})
    timeline = Timeline(run.timeline, "accuracy")
    for epoch in range(1, 4):
        timeline.epochs("training", [EpochResult(epoch, {"validation/accuracy": 0.3 * epoch, "train/loss": 1 / epoch})])
        timeline.gpu(0, {"samples_per_s": 3000.0})
        timeline.gpu(1, {"samples_per_s": 1000.0})
    timeline.close()
    run.write_summary(
        {
            "name": run.name,
            "source": {"sweep": "earlier", "trial_id": "t0007"},
            "hyperparameters": {"lr": 0.1},
            "data": "real",
            "workers": 2,
            "global_batch": 64,
            "epochs": 3,
            "metrics": {"validation/accuracy": 0.9},
            "best": {"score": 0.9, "epoch": 3},
            "retries": 0,
            "wall_s": 30.0,
            "command_s": 41.0,
            "samples_per_s": 4000.0,
            "gpus": [
                {"index": index, "uuid": None, "name": "made-up GPU", "samples_per_s": rate}
                for index, rate in enumerate((3000.0, 1000.0))
            ],
            "checkpoint": None,
            "tracking": {"status": "finished"},
        }
    )
    return run


def sweep(folder: Path, number: int = 20, trials: Sequence[TrialRecord] | None = None) -> RunData:
    """Return the data of such a sweep."""
    return RunData.load(sweep_folder(folder, number, trials))
