"""The code that a production training takes: an experiment on all devices, or a function on one."""

from __future__ import annotations

import shlex
from operator import attrgetter
from typing import Any

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import BadInput
from raygpu.experiment import Experiment
from raygpu.search.command_line import filled
from raygpu.search.trials import Trial
from raygpu.workflow.user_code import require_experiment

_ONE_DEVICE = "a function trains on one device, in one worker"
_OWN_BATCHES = "a function makes its own batches"
_OWN_RATE = "a function sets its own learning rate"
UNSUITED = {
    "workers": _ONE_DEVICE,
    "devices_per_worker": _ONE_DEVICE,
    "ratios": _ONE_DEVICE,
    "global_batch": _OWN_BATCHES,
    "accumulate": _OWN_BATCHES,
    "loss_by_share": _OWN_BATCHES,
    "lr_scaling": _OWN_RATE,
    "warmup_epochs": _OWN_RATE,
    "compile": "a function compiles its own model",
    "gpu.precision": "a function sets its own precision; give --gpu.precision float32",
    "data.fraction": "a function loads its own data",
    "data.samples_per_epoch": "a function decides on its own epochs",
    "registered_name": "a function's model has no known form; log and register it in the function, by mlflow",
}
"""Keys that have no meaning for a function, and why."""


def require_trainable(config: TrainConfig, source: Source, code: Any, *, warm_start: bool) -> None:
    """Raise BadInput if raygpu.train does not take this code, or its settings do not suit it.

    code: an experiment, a function, or None for a script. warm_start: whether to begin with a trial's parameters.
    """
    if code is None:
        raise BadInput(
            f"command: a script is not trained by raygpu.train; run it by: {command_line(config)} (raygpu.sweep trains"
            " scripts, one trial with each set of hyper-parameters)"
        )
    if isinstance(code, Experiment):
        return require_experiment(config, source, code, "raygpu.train")
    faults = _function_faults(config)
    if warm_start:
        faults.append(
            "--warm-start: a function's checkpoint is its own state, with its epoch, and not parameters alone; load"
            " that file in the function"
        )
    if faults:
        raise BadInput(faults)


def command_line(config: TrainConfig) -> str:
    """Return a script's command line with the hyper-parameters filled in."""
    trial = Trial(str(config.source.get("trial_id", Trial.name(0))), config.seed, config.hyperparameters)
    return shlex.join(filled(str(config.command), trial, config.epochs))


def _function_faults(config: TrainConfig) -> list[str]:
    """Return a line for each setting that has no meaning for a function."""
    without = TrainConfig(experiment=config.experiment)
    faults = []
    for name, why in UNSUITED.items():
        value_of = attrgetter(name)
        read = value_of(config)
        if read != value_of(without) and (name, read) != ("workers", 1):
            faults.append(f"{name}: read {str(read).lower() if isinstance(read, bool) else read}; {why}")
    if config.epochs is None:
        faults.append("epochs: not given; of a function, it is the number of reports after which it is stopped")
    return faults
