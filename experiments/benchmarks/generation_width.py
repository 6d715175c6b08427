"""What a wide generation costs a search that learns: the best score by number of trials, for each sampler and width.

    python -m experiments.benchmarks.generation_width [--trials 128] [--seeds 20] [--gp-seeds 5] [--gp-trials 64]
        [--samplers tpe,gp,cmaes]

Beside generations of 1, 4, 8, 16 and 64 trials there are the default ones, those of `tpe` growing. A generation is
asked for at once, before any of its results is told, as an array of that many members trains it. Three objectives,
all minimized: Hartmann's function of six numbers (many minima), Rosenbrock's of four (a curved valley), and a
surrogate of the digits MLP: a random forest on the validation errors of real trainings, with a choice and a
conditional hyper- parameter. The regret is the best score so far above the least one known; the record has its median
over the seeds, and its ratio to that of random search after as many trials.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from experiments.benchmarks import record
from raygpu import sweep
from raygpu.config import SweepConfig
from raygpu.records.run_directory import RunDirectory
from raygpu.search.samplers import sampler
from raygpu.search.space import parse, random_trials
from raygpu.workflow.opened_run import SweepRun

WIDTHS = (1, 4, 8, 16, 64)
LEARNING = ("tpe", "gp", "cmaes")
LEAST_REGRET = 1e-9
SURROGATE_SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 3.0]},
    "momentum": {"uniform": [0.0, 0.99]},
    "weight_decay": {"loguniform": [1e-6, 1e-1]},
    "hidden": {"choice": [16, 32, 64]},
    "schedule": {"choice": ["constant", "cosine"]},
    "batch_size": 64,
}
A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
)
P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


@dataclass(frozen=True, slots=True)
class Objective:
    """A function to minimize."""

    space: Mapping[str, Any]
    value: Callable[[Mapping[str, Any]], float]
    least: float
    """Least value known."""


def hartmann(hp: Mapping[str, Any]) -> float:
    """Hartmann's function of six numbers from 0 to 1 (Dixon and Szego, 1978)."""
    x = np.array([hp[f"x{i}"] for i in range(6)])
    return -float(np.array([1.0, 1.2, 3.0, 3.2]) @ np.exp(-(A * (x - P) ** 2).sum(axis=1)))


def rosenbrock(hp: Mapping[str, Any]) -> float:
    """Rosenbrock's function of four numbers from -2 to 2."""
    x = np.array([hp[f"x{i}"] for i in range(4)])
    return float((100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum())


def surrogate(num_trials: int) -> Objective:
    """Return a random forest on the errors of real trainings of the digits MLP, each of five epochs."""
    from sklearn.ensemble import RandomForestRegressor

    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        values = {
            "experiment": "experiments.digits:Mlp",
            "name": "surrogate",
            "metric": "accuracy",
            "trials": num_trials,
            "epochs": 5,
            "runs_dir": folder,
            "space": SURROGATE_SPACE,
            "gpu": {"mode": "fused"},
            "tracking": {"enabled": False},
        }
        sweep.run(SweepConfig.model_validate(values))
        trials = SweepRun(RunDirectory.existing(Path(folder) / "surrogate")).trials
    scored = [trial for trial in trials if trial.score is not None and np.isfinite(trial.score)]
    forest = RandomForestRegressor(100, min_samples_leaf=2, random_state=0, n_jobs=1)
    forest.fit([_features(t.hyperparameters) for t in scored], [1 - (t.score or 0.0) for t in scored])
    points = random_trials(parse(SURROGATE_SPACE), 20_000, seed=12345)
    least = float(forest.predict([_features(trial.hyperparameters) for trial in points]).min())
    trees = [tree.tree_ for tree in forest.estimators_]

    def value(hp: Mapping[str, Any]) -> float:
        """Return the predicted error: the trees' mean, since the forest's own way takes milliseconds for one point."""
        features = np.array([_features(hp)], dtype=np.float32)
        return float(np.mean([tree.predict(features) for tree in trees]))

    return Objective(SURROGATE_SPACE, value, least)


def _features(hp: Mapping[str, Any]) -> tuple[float, ...]:
    return (
        float(np.log(hp["lr"])),
        hp["momentum"],
        float(np.log(hp["weight_decay"])),
        float(np.log2(hp["hidden"])),
        float(hp["schedule"] == "cosine"),
    )


def best_so_far(objective: Objective, algorithm: str, width: int | None, seed: int, trials: int) -> list[float]:
    """Return the regret after each trial of a search. width: trials at once; None for the default."""
    values = {
        "experiment": "none:none",
        "metric": "loss",
        "trials": trials,
        "seed": seed,
        "space": dict(objective.space),
        "search": {"algorithm": algorithm, "generation": width},
    }
    config = SweepConfig.model_validate(values)
    search = sampler(config, parse(config.space, algorithm))
    scores: list[float] = []
    while not search.finished:
        generation = []
        while (trial := search.next()) is not None:
            generation.append((trial.trial_id, objective.value(trial.hyperparameters)))
        for trial_id, score in generation:
            search.tell(trial_id, score)
        scores += [score for _, score in generation]
    regrets = np.maximum(np.minimum.accumulate(scores) - objective.least, LEAST_REGRET)
    return [float(regret) for regret in regrets]


def measured(objectives: Mapping[str, Objective], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the median regrets after a growing number of trials, by objective and by sampler and width."""
    asked = arguments.samplers.split(",")
    available = [name for name in asked if name != "cmaes" or importlib.util.find_spec("cmaes")]
    cases = [("random", None), ("qmc", None), *((name, width) for name in available for width in (*WIDTHS, None))]
    found: dict[str, Any] = {}
    for name, objective in objectives.items():
        for algorithm, width in cases:
            is_gp = algorithm == "gp"
            trials = min(arguments.trials, arguments.gp_trials) if is_gp else arguments.trials
            seeds = range(arguments.gp_seeds if is_gp else arguments.seeds)
            curves = [best_so_far(objective, algorithm, width, seed, trials) for seed in seeds]
            counts = [count for count in (16, 32, 64, 128, 256) if count <= trials]
            label = f"{algorithm}, {width} at once" if width is not None else algorithm
            found.setdefault(name, {})[label] = {
                str(count): median(curve[count - 1] for curve in curves) for count in counts
            }
            print(name, label, found[name][label], flush=True)
    return found


def ratios(found: Mapping[str, Any], count: int) -> dict[str, float]:
    """Return each search's regret over random search's after `count` trials, the geometric mean over objectives."""
    labels: Sequence[str] = list(next(iter(found.values())))
    key = str(count)
    return {
        f"{label}: regret / random's, {count} trials": round(
            geometric_mean(own[label][key] / own["random"][key] for own in found.values()), 3
        )
        for label in labels
    }


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--gp-seeds", type=int, default=5)
    parser.add_argument("--gp-trials", type=int, default=64)
    parser.add_argument("--samplers", default=",".join(LEARNING), help="those of Optuna that are measured")
    parser.add_argument("--surrogate-trials", type=int, default=800, help="real trainings behind the surrogate")
    arguments = parser.parse_args()
    objectives = {
        "digits MLP": surrogate(arguments.surrogate_trials),
        "Hartmann 6": Objective({f"x{i}": {"uniform": [0, 1]} for i in range(6)}, hartmann, -3.32237),
        "Rosenbrock 4": Objective({f"x{i}": {"uniform": [-2, 2]} for i in range(4)}, rosenbrock, 0.0),
    }
    found = measured(objectives, arguments)
    most = min(arguments.trials, arguments.gp_trials) if "gp" in arguments.samplers else arguments.trials
    counts = [count for count in (64, 256) if count <= most] or [most]
    results = {"median regret": found, "ratios": {k: v for count in counts for k, v in ratios(found, count).items()}}
    record.write("generation_width", results, vars(arguments))


if __name__ == "__main__":
    main()
