"""What waiting for a generation costs trials that train alone: idle places, and the best score by wall time.

    python -m experiments.benchmarks.search_places [--trials 80] [--places 5] [--seeds 5]

Trials of one function share a simulated GPU: Hartmann's function of six numbers, after a sleep of a second on
average (lognormal, by the trial's seed). `tpe` draws each by all results so far, or in generations of eight. Both
searches of a seed run by turns. The time is that from the first trial's start to the last one's end, over the trials'
own seconds divided by the places; the regret is the best score above the least known, after each search and after as
many seconds as the shorter one took.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import raygpu
from experiments.benchmarks import record
from experiments.benchmarks.generation_width import hartmann
from raygpu import sweep
from raygpu.config import SweepConfig
from raygpu.records.run_directory import RunDirectory

LEAST = -3.32237
"""Least value of Hartmann's function."""
MEAN_S, SIGMA = 1.0, 0.5
"""Mean seconds of a trial, and the deviation of their logarithm."""
WAYS = {"by all results": None, "generations of 8": 8}


def seconds(seed: int) -> float:
    """Return the seconds that a trial sleeps."""
    return MEAN_S * math.exp(random.Random(seed).gauss(-(SIGMA**2) / 2, SIGMA))


def objective(hp: Mapping[str, Any]) -> None:
    """Sleep, and report Hartmann's function."""
    time.sleep(seconds(hp["seed"]))
    raygpu.report(value=hartmann(hp))


def searched(generation: int | None, seed: int, trials: int, places: int) -> dict[str, Any]:
    """Search once; return the time over the least possible one, and the moments and values of the results."""
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-") as folder:
        values = {
            "experiment": "experiments.benchmarks.search_places:objective",
            "name": "places",
            "metric": "value",
            "direction": "min",
            "trials": trials,
            "seed": seed,
            "runs_dir": folder,
            "space": {f"x{i}": {"uniform": [0, 1]} for i in range(6)},
            "search": {"algorithm": "tpe", "generation": generation},
            "gpu": {"fraction": 1 / places},
            "tracking": {"enabled": False},
        }
        sweep.run(SweepConfig.model_validate(values))
        lines = RunDirectory.existing(Path(folder) / "places").timeline.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    runs = [event for event in events if event["event"] == "run"]
    began = min(run["from"] for run in runs)
    results = sorted((e["at"] - began, e["rows"][-1][1]["value"]) for e in events if e["event"] == "epochs")
    took_s = max(run["to"] for run in runs) - began
    return {"s": took_s, "over_least": took_s * places / sum(run["to"] - run["from"] for run in runs), "of": results}


def regret(found: Mapping[str, Any], until_s: float) -> float:
    """Return the best value above the least one at a moment."""
    return min((value for at, value in found["of"] if at <= until_s), default=math.inf) - LEAST


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--places", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=5)
    flags = parser.parse_args()
    rounds: list[dict[str, Any]] = []
    for seed in range(flags.seeds):
        ways = list(WAYS.items())
        found = {
            name: searched(generation, seed, flags.trials, flags.places)
            for name, generation in (ways if seed % 2 == 0 else reversed(ways))
        }
        shorter_s = min(each["s"] for each in found.values())
        rounds.append(
            {
                name: {
                    "s": round(each["s"], 2),
                    "over_least": round(each["over_least"], 3),
                    "regret": round(regret(each, math.inf), 4),
                    "regret_when_the_shorter_ended": round(regret(each, shorter_s), 4),
                }
                for name, each in found.items()
            }
        )
        print(rounds[-1], flush=True)
    medians = {name: {key: median(each[name][key] for each in rounds) for key in rounds[0][name]} for name in WAYS}
    print(json.dumps(medians, indent=1))
    record.write("search_places", {"medians": medians, "rounds": rounds}, vars(flags))


if __name__ == "__main__":
    main()
