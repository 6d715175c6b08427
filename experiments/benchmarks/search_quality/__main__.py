"""Run every searcher on every problem, interleaved, and write the record; `--go-on` keeps what an earlier run measured.

python -m experiments.benchmarks.search_quality --seconds 60 --seeds 7 [--problems digits_mlp,cancer_mlp]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from experiments.benchmarks import record
from experiments.benchmarks.search_quality import regret
from experiments.benchmarks.search_quality.command_line import Search
from experiments.benchmarks.search_quality.problems import PROBLEMS, SEED_VARIABLE
from experiments.benchmarks.search_quality.reports import Notebook, Report, incumbent, trainings

PACKAGE = "experiments.benchmarks.search_quality"
SEARCHERS = {
    "raygpu": "raygpu_sweep",
    "raygpu_tpe": "raygpu_sweep",
    "random": "ray_tune_by_hand",
    "asha": "ray_tune_by_hand",
    "pbt": "ray_tune_by_hand",
    "optuna": "optuna_by_hand",
    "optuna_processes": "optuna_by_hand",
    "keras_tuner": "keras_tuner_by_hand",
}
"""Module of each searcher."""
MOMENTS_S = (30.0, 60.0, 120.0, 300.0)
END_S = 120.0
"""Seconds that a searcher may take to end once its time is up; what it finds then does not count."""
NOTEBOOK_VARIABLE = "SEARCH_NOTEBOOK"
"""Variable with the path of a search's notebook, in all its processes."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time of each search")
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--searchers", default=",".join(SEARCHERS))
    parser.add_argument("--folder", type=Path, default=Path("runs/search_quality"), help="of the searches' notebooks")
    parser.add_argument("--go-on", action="store_true", help="leave out the searches whose notebooks are there")
    flags = parser.parse_args()
    has_keras_tuner = find_spec("keras_tuner") is not None and find_spec("tensorboard") is not None
    searchers = [name for name in flags.searchers.split(",") if name != "keras_tuner" or has_keras_tuner]
    problems = flags.problems.split(",")
    flags.folder.mkdir(parents=True, exist_ok=True)
    for seed in range(flags.seeds):
        for problem in problems:
            order = able(searchers, problem)
            for searcher in order if seed % 2 == 0 else reversed(order):
                path = flags.folder / f"{problem}-{searcher}-{seed}-{flags.seconds:g}.jsonl"
                if not (flags.go_on and path.exists()):
                    run(searcher, problem, seed, flags.seconds, path.resolve())  # workers have folders of their own
    found = {problem: summary(problem, able(searchers, problem), flags) for problem in problems}
    record.write("search_quality", found, {name: str(value) for name, value in vars(flags).items()})


def able(searchers: list[str], problem: str) -> list[str]:
    """Return the searchers that take a problem: PBT needs weights to copy, Keras Tuner a network."""
    fused = PROBLEMS[problem].fused
    return [name for name in searchers if fused or name not in ("pbt", "keras_tuner")]


def run(searcher: str, problem: str, seed: int, seconds: float, path: Path) -> None:
    """Run one search from its command on, to its time's end."""
    path.unlink(missing_ok=True)
    began = time.time()
    order = Search(searcher, PROBLEMS[problem], seed, Notebook(path, began), began + seconds)
    command = [sys.executable, "-m", f"{PACKAGE}.{SEARCHERS[searcher]}", *order.words()]
    environment = os.environ | {
        SEED_VARIABLE: str(seed),
        NOTEBOOK_VARIABLE: str(path),
        "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    with path.with_suffix(".log").open("w") as log:
        done = subprocess.run(
            command, stdout=log, stderr=log, env=environment, timeout=seconds + END_S, check=False
        ).returncode
    end_leftovers(path)
    if done:
        raise RuntimeError(f"{searcher} on {problem} ended with {done}: {path.with_suffix('.log')}")
    reports = order.notebook.read()
    if not reports:
        raise RuntimeError(f"{searcher} on {problem} reported nothing: {path.with_suffix('.log')}")
    best = incumbent(reports, seconds)
    print(f"{problem} {seed} {searcher}: {best}, {trainings(order.notebook)} trainings", flush=True)


def end_leftovers(path: Path) -> None:
    """End the processes that a search has left, as raygpu's that compile for later sweeps.

    They would slow down the next search, and no other one reads the folder that they fill.
    """
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(NOTEBOOK_VARIABLE) == str(path):
                process.kill()


def summary(problem: str, searchers: list[str], flags: argparse.Namespace) -> dict[str, Any]:
    """Return test errors and regrets of a problem at each moment within the time."""
    moments = [moment for moment in MOMENTS_S if moment <= flags.seconds] or [flags.seconds]

    notebooks = {
        each: [
            Notebook(flags.folder / f"{problem}-{each}-{seed}-{flags.seconds:g}.jsonl", 0.0)
            for seed in range(flags.seeds)
        ]
        for each in searchers
    }
    reports = {name: [each.read() for each in of_seeds] for name, of_seeds in notebooks.items()}

    def best_at(moment: float) -> dict[str, list[Report | None]]:
        """Return the report of each searcher's best model at a moment, by seed."""
        return {name: [incumbent(each, moment) for each in of_seeds] for name, of_seeds in reports.items()}

    errors = [
        {name: [None if best is None else best.test for best in of_seeds] for name, of_seeds in best_at(moment).items()}
        for moment in moments
    ]
    best = regret.references(errors)
    found: dict[str, Any] = {
        "reference_test_errors": best,
        "trainings": {name: [trainings(each) for each in of_seeds] for name, of_seeds in notebooks.items()},
        "first_score_s": {
            name: [each and round(each[0].elapsed_s, 2) for each in of_seeds] for name, of_seeds in reports.items()
        },
        "validation_scores": {
            name: [each and each.validation for each in of_seeds] for name, of_seeds in best_at(flags.seconds).items()
        },
    }
    for moment, at in zip(moments, errors, strict=True):
        regrets = regret.median_regrets(at, best)
        found[f"{moment:g} s"] = {
            "test_errors": at,
            "median_regrets": {name: round(value, 5) for name, value in regrets.items()},
            "raygpu's over the best peer's": {
                own: ratio for own in searchers if own.startswith("raygpu")
                for ratio in [regret.over_best_peer(regrets, own)]
            },
        }  # fmt: skip
    print(json.dumps({moment: found[moment]["median_regrets"] for moment in found if moment.endswith(" s")}, indent=1))
    return found


if __name__ == "__main__":
    main()
