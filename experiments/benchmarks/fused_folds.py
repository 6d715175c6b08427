"""Cross-validation in fused arrays: one array for the members of all folds of a size, beside an array for each fold.

    python -m experiments.benchmarks.fused_folds [--sets 8] [--folds 5] [--rounds 5] [--epochs 10]

The network is the MLP on the digits. Of 1797 samples, five folds have 359 or 360 each, so members of all folds make two
arrays; of 1795 they make one. Ways take turns, and every second round runs backwards. Samples/s are of training, on
one thread and with eager steps; the seconds are of everything: models, epochs, evaluations and audits.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.benchmarks import record
from experiments.digits import Mlp, digits
from raygpu.experiment import Splits
from raygpu.search.space import parse
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.folds import Folds

SPACE = {"lr": {"loguniform": [1e-3, 1.0]}, "momentum": {"uniform": [0.0, 0.95]}, "batch_size": 32, "hidden": 128}
SAMPLES = (1797, 1795)
WAYS = ("an array for each fold", "an array for each size of folds")


def pool(num_samples: int, num_folds: int) -> Folds:
    """Return folds of the first digits."""
    whole = digits()
    x = np.concatenate([np.asarray(whole.train_inputs), np.asarray(whole.validation_inputs)])[:num_samples]
    y = np.concatenate([np.asarray(whole.train_targets), np.asarray(whole.validation_targets)])[:num_samples]
    return Folds.of(Splits(x[:-1], y[:-1], x[-1:], y[-1:]), num_folds, seed=0)


def trials(num_sets: int, num_folds: int) -> list[Trial]:
    """Return every set of hyper-parameters in every fold."""
    space = parse(SPACE)
    return [
        Trial(Trial.repeat_name(Trial.name(index), fold), 0, space.draw(0, index), repeat=0, fold=fold)
        for index in range(num_sets)
        for fold in range(num_folds)
    ]


def arrays(way: str, folds: Folds, members: Sequence[Trial]) -> list[list[Trial]]:
    """Return the members of each array."""
    found: dict[Any, list[Trial]] = {}
    for trial in members:
        assert trial.fold is not None
        found.setdefault(trial.fold if way == WAYS[0] else folds.sizes(trial.fold), []).append(trial)
    return list(found.values())


def run(way: str, folds: Folds, members: Sequence[Trial], epochs: int) -> dict[str, Any]:
    """Train all members to the end, one array after the other."""
    from raygpu.training.fused.model_array import TorchArray

    settings, began = Settings(epochs, 1, "float32", Path()), time.perf_counter()
    train_s = evaluation_s = samples = 0.0
    scores: dict[str, float] = {}
    groups = arrays(way, folds, members)
    for group in groups:
        array = TorchArray(Mlp(), folds, group, settings, width=len(group))
        while (results := array.run_epoch()) is not None:
            one = next(iter(results.values()))
            train_s, evaluation_s = train_s + (one.train_s or 0.0), evaluation_s + (one.validate_s or 0.0)
            samples += sum(result.num_samples or 0 for result in results.values())
            scores |= {name: result.metrics["validation/accuracy"] for name, result in results.items()}
        array.close()
    return {
        "samples_per_s": samples / train_s,
        "evaluation_s": evaluation_s,
        "seconds": time.perf_counter() - began,
        "widths": [len(group) for group in groups],
        "mean_accuracy": float(np.mean(list(scores.values()))),
    }


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("sets", 8), ("folds", 5), ("rounds", 5), ("epochs", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    ratios: dict[str, float] = {}
    for num_samples in SAMPLES:
        folds, members = pool(num_samples, options.folds), trials(options.sets, options.folds)
        for way in WAYS:
            run(way, folds, members, 2)  # warm-up
        for number in range(options.rounds):
            for way in WAYS if number % 2 == 0 else reversed(WAYS):
                found = {"samples": num_samples, "round": number, "way": way}
                rows.append(found | run(way, folds, members, options.epochs))
                print(rows[-1], flush=True)
        for name in ("samples_per_s", "seconds"):
            each: list[dict[str, float]] = [
                {row["way"]: row[name] for row in rows if (row["samples"], row["round"]) == (num_samples, number)}
                for number in range(options.rounds)
            ]
            ratios[f"{num_samples} samples, {name}: by size / by fold"] = median(r[WAYS[1]] / r[WAYS[0]] for r in each)
    record.write("fused_folds", {"rows": rows, "ratios": ratios}, vars(options) | {"space": SPACE})


if __name__ == "__main__":
    main()
