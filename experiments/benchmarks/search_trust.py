"""How often the winner of a search is truly among the best, with repeats and without, at equal wall time.

    python -m experiments.benchmarks.search_trust [--searches 30]

The networks are those of the digits MLP on a grid of 160 sets of hyper-parameters. What a set is truly worth is its
mean error over 20 further trainings, each on another cut of the data. Three kinds of search take turns: all 160 sets
once; 32 sets of them, drawn anew for each search, with 5 repeats each, which is as many trainings; all sets with 10
repeats under racing. Sweeps share one Ray, so that its start does not even out their times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from ray.cluster_utils import Cluster

from experiments.benchmarks import record
from experiments.benchmarks.search_quality.networks import DigitsMlp
from experiments.benchmarks.search_quality.problems import SEED_VARIABLE
from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.devices.host import num_cpus
from raygpu.search.space import grid_trials, parse
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

EPOCHS = 12
GRID = {
    "lr": {"grid_search": [round(float(value), 5) for value in np.geomspace(0.003, 1.0, 10)]},
    "momentum": {"grid_search": [0.0, 0.5, 0.9, 0.95]},
    "weight_decay": {"grid_search": [0.0, 1e-4, 1e-3, 1e-2]},
    "hidden": 64,
    "batch_size": 32,
}
KINDS: dict[str, dict[str, Any]] = {
    "160 sets, once": {},
    "32 sets, 5 repeats": {"trials": 32, "repeats": 5},
    "160 sets, 10 repeats, racing": {"repeats": 10, "racing": True},
}
TRUTHS = 20
"""Further trainings of each set."""
AMONG_THE_BEST = 0.05
"""Share of the grid that counts as the best."""
TRUTH_SEED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--searches", type=int, default=30)
    arguments = parser.parse_args()
    truth = true_errors()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": num_cpus(), "num_gpus": 1})
    rounds = []
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        for number in range(arguments.searches):
            kinds = list(KINDS) if number % 2 == 0 else list(reversed(KINDS))
            rounds.append({kind: search(kind, number, cluster.address, Path(folder), truth) for kind in kinds})
            print(json.dumps(rounds[-1]), flush=True)
    cluster.shutdown()
    found = {"true_errors": list(truth.values()), "rounds": rounds, "ratios": judged(rounds)}
    record.write("search_trust", found, vars(arguments))


def key(hyperparameters: Mapping[str, Any]) -> str:
    """Return a set's name."""
    return json.dumps({name: hyperparameters[name] for name in sorted(GRID)})


def true_errors() -> dict[str, float]:
    """Return the mean error of each set over trainings with other seeds on other cuts, on data held out in each."""
    from raygpu.training.fused.model_array import TorchArray

    sets = grid_trials(parse(GRID, "grid"), None, 0)
    errors: dict[str, list[float]] = {key(each.hyperparameters): [] for each in sets}
    for number in range(TRUTHS):
        os.environ[SEED_VARIABLE] = str(TRUTH_SEED + number)
        experiment = DigitsMlp()
        trials = [Trial(each.trial_id, TRUTH_SEED + number, each.hyperparameters) for each in sets]
        array = TorchArray(experiment, experiment.data(), trials, Settings(EPOCHS, num_cpus(), "float32", Path()))
        results: Mapping[str, Any] = {}
        while (epoch := array.run_epoch()) is not None:
            results = epoch
        for each in sets:
            metrics = results[each.trial_id].metrics
            both = metrics["validation/search_error"], metrics["validation/test_error"]
            errors[key(each.hyperparameters)].append(fmean(both))
        array.close()
    return {name: fmean(values) for name, values in errors.items()}


def search(kind: str, number: int, address: str, folder: Path, truth: Mapping[str, float]) -> dict[str, Any]:
    """Run a sweep; return its wall seconds, its winner's place by true error (0 is the best), and both errors."""
    os.environ[SEED_VARIABLE] = str(number)
    config = SweepConfig.model_validate(
        {
            "name": f"{number}-{list(KINDS).index(kind)}",
            "experiment": "experiments.benchmarks.search_quality.networks:DigitsMlp",
            "epochs": EPOCHS,
            "metric": "search_error",
            "direction": "min",
            "seed": number,
            "runs_dir": str(folder),
            "space": GRID,
            "search": {"algorithm": "grid"},
            "gpu": {"mode": "fused"},
            "tracking": {"enabled": False},
            "cluster": {"address": address},
            **KINDS[kind],
        }
    )
    began = time.monotonic()
    result = sweep.run(config, console=SweepConsole(json=True))
    best = result.summary["best"]
    own = truth[key(best["hyperparameters"])]
    return {
        "wall_s": round(time.monotonic() - began, 2),
        "place": sum(value < own for value in truth.values()),
        "told": best["score"],
        "true": own,
    }


def judged(rounds: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return, by kind: how often the winner is among the best, its median excess error, what it told too well."""
    smallest = AMONG_THE_BEST * len(grid_trials(parse(GRID, "grid"), None, 0))
    found = {}
    for kind in KINDS:
        own = [each[kind] for each in rounds]
        found[kind] = {
            "winner among the best 5 %": fmean(each["place"] < smallest for each in own),
            "median place of 160": median(each["place"] for each in own),
            "mean true error": round(fmean(each["true"] for each in own), 5),
            "told below the truth by": round(fmean(each["true"] - each["told"] for each in own), 5),
            "median wall_s": median(each["wall_s"] for each in own),
        }
    return found


if __name__ == "__main__":
    main()
