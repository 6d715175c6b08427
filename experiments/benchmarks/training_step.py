"""Cost of a training step and an optimizer of an experiment's own, beside raygpu's with the same operations.

    python -m experiments.benchmarks.training_step [--rounds 15]

array      16 members, eager: `training_step` against the built-in one
alone      one model: `training_step` against the built-in one
optimizer  one model: torch.optim.SGD from `optimizer`, fused, against the SGD that hyper-parameters name

Epochs of both take turns in one process. The ratios are medians of the rounds' own ratios, seconds of training of the
experiment's own over raygpu's.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from experiments.benchmarks import record
from experiments.benchmarks.fused_throughput import SEARCHED, epochs_of
from experiments.digits import Mlp
from raygpu.devices.host import num_cpus
from raygpu.search.space import parse, random_trials
from raygpu.training.base import Settings
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.torch.solo import TorchSolo

WIDTH = 16
MANY_EPOCHS = 1_000_000
GOALS = {"array": " (goal <= 1.02)", "alone": " (goal <= 1.02)", "optimizer": ""}


class OwnStep(Mlp):
    """The default's operations."""

    def training_step(self, model: nn.Module, inputs: Any, targets: Any, hp: Mapping[str, Any]) -> Any:
        return nn.functional.cross_entropy(model(inputs), targets)


class OwnOptimizer(Mlp):
    """The SGD that hyper-parameters name."""

    def optimizer(self, model: nn.Module, hp: Mapping[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=hp["lr"], momentum=hp["momentum"], fused=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    trials = random_trials(parse(SEARCHED | {"hidden": 128}), WIDTH, seed=0)

    def array(experiment: Mlp) -> Any:
        made = TorchArray(experiment, experiment.data(), trials, settings(num_cpus()), width=WIDTH)
        made.audits = False
        epoch = epochs_of(made)
        return lambda: epoch()[1]

    def alone(experiment: Mlp) -> Any:
        made = TorchSolo(experiment, experiment.data(), trials[0], settings(1))
        return lambda: made.run_epoch().train_s  # type: ignore[union-attr]

    cases = {
        "array": (array(OwnStep()), array(Mlp())),
        "alone": (alone(OwnStep()), alone(Mlp())),
        "optimizer": (alone(OwnOptimizer()), alone(Mlp())),
    }
    rounds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(-2, arguments.rounds):
        for name, (own, built_in) in cases.items():
            if number % 2:
                others, ours = built_in(), own()
            else:
                ours, others = own(), built_in()
            if number >= 0:
                rounds[name].append(round(ours / others, 3))
    ratios = {f"{name}: own over raygpu's{GOALS[name]}": round(median(of), 3) for name, of in rounds.items()}
    record.write("training_step", {"ratios": ratios, "rounds": rounds}, vars(arguments))


def settings(threads: int) -> Settings:
    return Settings(MANY_EPOCHS, threads, "float32", Path())


if __name__ == "__main__":
    main()
