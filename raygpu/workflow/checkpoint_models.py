"""Models of checkpoints: loaded on the CPU, and refused where they are not of an experiment's own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raygpu.config.source import Source
from raygpu.errors import BadInput, one_line
from raygpu.experiment import (
    Experiment,
    Splits,
    take,
)
from raygpu.records.scratch import fetched
from raygpu.search.trials import Trial
from raygpu.storage import Storage
from raygpu.workflow.user_code import Problem


def require_fitting(found: Problem, trial: Trial, checkpoint: Storage, flag: str) -> None:
    """Raise BadInput if a checkpoint is not of this model. flag: the flag that named it."""
    splits = found.splits
    assert splits is not None
    try:
        with fetched(checkpoint) as folder:
            trained_model(found.source, found.code, lambda: splits, trial, folder)
    except Exception as error:
        model = f"{found.source.name} with these hyper-parameters"
        raise BadInput(f"{flag}: {checkpoint} is no checkpoint of {model}: {one_line(error)}") from error


def warm_start_lines(found: Problem, trial: Trial) -> list[str]:
    """Return a line on what a training that begins with a trial's parameters takes from its own seed."""
    if found.source.kind != "torch":
        return []
    from raygpu.training.torch.checkpoint_check import drawn_attribute

    with contextlib.chdir(found.source.folder):
        drawn = drawn_attribute(found.code, trial.hyperparameters)
    if drawn is None:
        return []
    return [
        f"--warm-start: {drawn} is drawn by the seed, and no checkpoint holds it: the parameters are for that of the"
        f" trial's seed, and {trial.seed} is used; make it a persistent buffer"
    ]


def trained_model(source: Source, code: Experiment, data: Callable[[], Splits], trial: Trial, checkpoint: Path) -> Any:
    """Load the model of a trial's checkpoint, on the CPU. data: returns samples, which give shapes to a Keras model."""
    with contextlib.chdir(source.folder):
        if source.kind == "torch":
            from raygpu.training.torch import models

            return models.trained_model(code, trial, checkpoint)
        from raygpu.training.keras import solo as keras_solo

        return keras_solo.trained_model(code, trial, checkpoint, take(data().validation_inputs, slice(0, 2)))


def require_one_fitting(found: Problem, trial: Trial, checkpoints: Sequence[Storage]) -> None:
    """Raise BadInput if none of a run's checkpoints, the latest first, is of this model; the latest may be cut
    short. A function's state is its own, and is not looked at."""
    if found.splits is None:
        return
    faults: list[BadInput] = []
    for checkpoint in checkpoints:
        try:
            return require_fitting(found, trial, checkpoint, "--resume")
        except BadInput as error:
            faults.append(error)
    if faults:
        raise faults[0]
