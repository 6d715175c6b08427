"""Population based training against random search at equal epochs, and what its takeovers cost in an array.

    python -m experiments.benchmarks.population [--seeds 7] [--trials 16] [--epochs 40] [--interval 4]

Each seed draws the trials of a search, which are trained as one array three times: with constant values, with the
schedule cosine, and as a population. Of each, the trial with the best loss on one half of the validation data is
scored on the other half. `takeover_s` is the time of the comparisons and copies, of all training time `train_s`.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import nn

from experiments.benchmarks import record
from experiments.digits import Cnn, Mlp, digits
from raygpu import Splits, TorchExperiment
from raygpu.config.population_section import PopulationSection
from raygpu.engines.tune.evolution import Evolution
from raygpu.engines.tune.population_actor import PopulationActor, PopulationClient
from raygpu.search.exploration import changing, populations
from raygpu.search.population import Population
from raygpu.search.space import parse, random_trials
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray

SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-3, 1.0]},
    "momentum": {"uniform": [0.0, 0.95]},
    "weight_decay": {"loguniform": [1e-6, 1e-2]},
}
MODELS: dict[str, tuple[Callable[[], TorchExperiment], dict[str, Any]]] = {
    "mlp": (Mlp, {"hidden": 128}),
    "cnn": (Cnn, {"blocks": 2, "channels": 8, "channels2": 16}),
}
WAYS = ("random", "cosine", "population")


class Local(PopulationClient):
    """The population in this process."""

    def _ask(self, method: str, *arguments: Any) -> Any:
        return getattr(self._actor, method)(*arguments)


def halves() -> tuple[Splits, torch.Tensor, torch.Tensor]:
    """Return digits with one half of the validation data, and the other half to score the winner on."""
    whole = digits()
    inputs, targets = whole.validation_inputs, whole.validation_targets
    own = replace(whole, validation_inputs=inputs[::2], validation_targets=targets[::2])  # type: ignore[index]
    return own, torch.from_numpy(inputs[1::2]), torch.from_numpy(targets[1::2])  # type: ignore[index]


def search(way: str, model: str, trials: Sequence[Trial], arguments: argparse.Namespace) -> dict[str, float]:
    """Train the trials as one array; return the winner's scores on the other half, and where the time went."""
    kind, _ = MODELS[model]
    experiment, (splits, inputs, targets) = kind(), halves()
    space = parse(SPACE)
    section = PopulationSection(interval=arguments.interval)
    parameters = changing(section, space)
    names = [parameter.name for parameter in parameters]
    free = tuple(names) if way == "population" else ()
    settings = Settings(arguments.epochs, torch.get_num_threads(), "float32", Path(), changing=free)
    array = TorchArray(experiment, splits, trials, settings)
    array.audits = False
    population = Population(
        section, parameters, populations(trials, names), epochs=arguments.epochs, seed=trials[0].seed, maximize=False
    )
    epochs = frozenset(section.epochs(arguments.epochs)) if way == "population" else frozenset()
    evolution = Evolution(Local(PopulationActor(population)), epochs, names, Storage(tempfile.gettempdir()), trials)
    losses: dict[str, float] = {}
    takeover_s, began = 0.0, time.perf_counter()
    while True:
        compared = time.perf_counter()
        if evolution.is_due(array):
            evolution.exchange(array, losses.__getitem__)
            takeover_s += time.perf_counter() - compared
        if (results := array.run_epoch()) is None:
            break
        losses = {name: _finite(result.metrics["validation/loss"]) for name, result in results.items()}
    train_s = time.perf_counter() - began
    best = min(trials, key=lambda trial: losses[trial.trial_id])
    own = experiment.model(best.hyperparameters)
    own.load_state_dict(array.member_state(best.trial_id)["model"])
    with torch.no_grad():
        outputs = own.eval()(inputs)
    return {
        "loss": nn.functional.cross_entropy(outputs, targets).item(),
        "error": (outputs.argmax(-1) != targets).double().mean().item(),
        "chosen_by": losses[best.trial_id],
        "train_s": train_s,
        "takeover_s": takeover_s,
    }


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf


def drawn(model: str, seed: int, count: int, **values: Any) -> list[Trial]:
    """Return the trials of a search, the same for each way."""
    shape = {"batch_size": 32, **MODELS[model][1], **values}
    return [
        replace(trial, hyperparameters={**trial.hyperparameters, **shape})
        for trial in random_trials(parse(SPACE), count, seed)
    ]


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the results of all seeds by model and way, and their summary."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for model in MODELS:
        rows: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for seed in range(arguments.seeds):
            for way in WAYS:
                values = {"schedule": "cosine"} if way == "cosine" else {}
                rows[way].append(search(way, model, drawn(model, seed, arguments.trials, **values), arguments))
            print(model, seed, {way: round(rows[way][-1]["loss"], 4) for way in WAYS}, flush=True)
        found[model] = rows
    return found


def summary(found: Mapping[str, Mapping[str, Sequence[Mapping[str, float]]]]) -> dict[str, Any]:
    """Return medians, the number of seeds in which the population won, and the share of time of its takeovers."""
    rows: dict[str, Any] = {}
    for model, ways in found.items():
        own = ways["population"]
        rows[model] = {
            "median_loss": {way: median(row["loss"] for row in each) for way, each in ways.items()},
            "mean_error": {way: mean(row["error"] for row in each) for way, each in ways.items()},
            "seeds_won_by_loss": {
                way: sum(a["loss"] < b["loss"] for a, b in zip(own, ways[way], strict=True)) for way in WAYS[:2]
            },
            "takeover_share": median(row["takeover_s"] / row["train_s"] for row in own),
            "time_ratio": median(a["train_s"] / b["train_s"] for a, b in zip(own, ways["random"], strict=True)),
        }
    return rows


def main() -> None:
    """Measure, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("seeds", 7), ("trials", 16), ("epochs", 40), ("interval", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    found = measured(arguments)
    record.write("population", {"ratios": summary(found), "rows": found}, {**vars(arguments), "space": SPACE})


if __name__ == "__main__":
    main()
