"""How far the compiled step of an array is from its eager one: the changes of one step in each member's parameters.

    python -m experiments.benchmarks.compiled_steps [--device cpu] [--precision float32] [--reorder]

A figure is the norm of the difference between the changes over the norm of the eager change, of the member with the
largest. "eager" compares two eager steps: what the device repeats by itself. "inputs off by 1e-6" compares the eager
step with one of inputs that are off by a millionth: a network in which some activations are next to zero, where a ReLU
has its corner, turns rounding into as much. --reorder lets the compiler reorder kernels to save memory, as raygpu does
not with torch before 2.13.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.benchmarks import record
from experiments.benchmarks.fused_throughput import NETWORKS
from experiments.resnet import ResNet18, SmallResNet
from raygpu import TorchExperiment
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.fused.compiled_step import IN_ORDER
from raygpu.training.fused.model_array import TorchArray

BATCH_SIZE = 32
LEARNING_RATES = (0.1, 0.01, 0.03)
OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {"momentum": 0.9}, "adam": {"eps": 1e-3}}
"""Adam has the smallest `eps` of raygpu's own audits: a gradient that is only rounding, as of a bias before a
BatchNorm, then makes no step of full size."""
RESNETS: dict[str, tuple[type[TorchExperiment], dict[str, Any]]] = {
    "small resnet": (SmallResNet, {"channels": 8}),
    "resnet18": (ResNet18, {"channels": 64}),
}
OFF = 1e-6
"""Relative change of the inputs with which the compiled step is compared."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "tf32", "bf16", "fp16"), default="float32")
    parser.add_argument("--reorder", action="store_true", help="let the compiler reorder kernels to save memory")
    arguments = parser.parse_args()
    if arguments.reorder:
        IN_ORDER["reorder_for_peak_memory"] = True
    networks = {name: NETWORKS[name] for name in ("mlp", "cnn")} | RESNETS
    differences: dict[str, dict[str, float]] = {}
    for name, (kind, shape) in networks.items():
        for optimizer, own in OPTIMIZERS.items():
            hp = {**shape, "batch_size": BATCH_SIZE, "optimizer": optimizer, **own}
            eager = changes(kind(), hp, arguments)
            differences[f"{name}, {optimizer}"] = found = {
                "eager": largest(changes(kind(), hp, arguments), eager),
                "compiled": largest(changes(kind(), hp, arguments, compiled=True), eager),
                f"inputs off by {OFF:g}": largest(changes(kind(), hp, arguments, off=OFF), eager),
            }
            print(f"{name}, {optimizer}: {found}", flush=True)
    part = f"{arguments.device}-torch{torch.__version__.partition('+')[0]}{'-reordered' if arguments.reorder else ''}"
    record.write("compiled_steps", {"differences": differences}, vars(arguments), part)


def changes(
    experiment: TorchExperiment,
    hp: dict[str, Any],
    arguments: argparse.Namespace,
    *,
    compiled: bool = False,
    off: float = 0.0,
) -> list[torch.Tensor]:
    """Return the change of all parameters in an array's first step, flat, a tensor for each member.

    off: relative change of the inputs, at random.
    """
    scale = 0.1 if hp["optimizer"] == "adam" else 1.0
    trials = [Trial(Trial.name(i), i, {**hp, "lr": scale * lr}) for i, lr in enumerate(LEARNING_RATES)]
    settings = Settings(1, torch.get_num_threads(), arguments.precision, Path())
    few = experiment.data().first(BATCH_SIZE)
    inputs = np.asarray(few.train_inputs)
    noise = 1 + off * np.random.default_rng(0).standard_normal(inputs.shape)
    few = replace(few, train_inputs=(inputs * noise).astype(np.float32))
    array = TorchArray(experiment, few, trials, settings, device=torch.device(arguments.device))
    if compiled:
        array.program.compile(len(trials), array.batch_size)
    before = [flat(array, trial) for trial in trials]
    array.run_epoch()
    return [flat(array, trial) - old for trial, old in zip(trials, before, strict=True)]


def flat(array: TorchArray, trial: Trial) -> torch.Tensor:
    """Return a member's parameters, float64."""
    state = array.member_state(trial.trial_id)["model"]
    return torch.cat([state[name].double().flatten() for name, _ in array.program.model.named_parameters()])


def largest(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """Return the largest relative difference of a member's change."""
    return float(f"{max(float((a - b).norm() / b.norm()) for a, b in zip(found, wanted, strict=True)):.2g}")


if __name__ == "__main__":
    main()
