"""The user's experiment, loaded and tried: its code, its data, and what a first look at them shows."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raygpu.config import ProblemConfig, TrialsConfig
from raygpu.config.sections import ScriptSection
from raygpu.config.source import Source, locate
from raygpu.errors import BadInput, one_line
from raygpu.experiment import ALL_NAMES, Experiment, Hyperparameters, MissingHyperparameter, Splits, take
from raygpu.search.trials import Scoring
from raygpu.storage import Storage
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.workflow.validation import Prepared, PreparedTrain

ALMOST = 0.85
"""Similarity of two names, 0 to 1, above which one counts as the other misspelt."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The user's code and data."""

    source: Source
    code: Any
    """An `Experiment`, a function, or None for a command."""
    splits: Splits | None
    notes: list[str] = field(default_factory=list)
    """Lines for a person to read before the training."""


def find(config: ProblemConfig, folder: Path) -> tuple[Source, Any]:
    """Return the source and the user's code: an `Experiment`, a function, or None for a command. Raises BadInput.

    folder: the start of relative paths.
    """
    script = config.script if isinstance(config, TrialsConfig) else ScriptSection()
    source, code = Source("command", str(config.command), str(folder), script), None
    if config.experiment is not None:
        source, code = locate(config.experiment, folder)
        _require_framework(source)
    if config.data.synthetic:
        _require_synthetic(source, code)
    return source, code


def _require_framework(source: Source) -> None:
    """Raise BadInput if the experiment's framework is not installed here."""
    extra = {"torch": "torch", "keras": "tensorflow"}.get(source.kind)
    if extra is not None and importlib.util.find_spec(extra) is None:
        raise BadInput(f"experiment: {source.name} needs {extra}, which is not installed here: pip install {extra}")


def problem(prepared: Prepared, source: Source, code: Any) -> Problem:
    """Load the data once, and check that the metric exists. Raises BadInput."""
    config = prepared.config
    if not isinstance(code, Experiment):
        return Problem(source, code, None)
    if config.gpu.fraction != "auto" and config.gpu.fraction > 1:
        raise BadInput(
            f"gpu.fraction: read {config.gpu.fraction:g}; a TorchExperiment or KerasExperiment trains on one GPU,"
            " and only a function or a script may use several"
        )
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")
    splits = load_data(config, source, code)
    notes = _check_metric(prepared, source, code, splits)
    return Problem(source, code, splits.part(config.data.fraction, config.seed), notes)


def load_data(config: ProblemConfig, source: Source, code: Experiment) -> Splits:
    """Load all of an experiment's data, real or synthetic. Raises BadInput."""
    name, load = ("synthetic()", code.synthetic) if config.data.synthetic else ("data()", code.data)
    try:
        with contextlib.chdir(source.folder):
            splits = load()
    except (Exception, SystemExit) as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {config.experiment}: {name} failed: {one_line(error)}") from error
    if not isinstance(splits, Splits):
        raise BadInput(f"experiment: {config.experiment}: {name} returned {type(splits).__name__}, not Splits")
    return splits


def _require_synthetic(source: Source, code: Any) -> None:
    """Raise BadInput if the user's code has no synthetic data."""
    if not isinstance(code, Experiment):
        what = f"a {source.kind} loads its own data; only a TorchExperiment or KerasExperiment can have made-up data"
        raise BadInput(f"data.synthetic: read true; {what}")
    if type(code).synthetic is Experiment.synthetic:
        raise BadInput(
            f"data.synthetic: read true; {source.name} has no made-up data: give it a method synthetic(self) that"
            " returns Splits of data()'s shapes and types"
        )


def _check_metric(prepared: Prepared, source: Source, code: Experiment, splits: Splits) -> list[str]:
    """Evaluate a new model on a few samples to find the metric; return a line for each name that looks misspelt.

    Other exceptions of the user's code are left to the trials. Raises BadInput, and UnknownMetric.
    """
    config = prepared.config
    grid = config.search.algorithm == "grid"
    hp = Hyperparameters(next(prepared.space.grid()) if grid else prepared.space.draw(config.seed, 0))
    try:
        names = _metric_names(source, code, hp, splits)
    except MissingHyperparameter as error:
        if error.name in config.space:
            return []  # a conditional one, which this draw happens to lack
        raise BadInput(f"space: {config.experiment} reads {error.name!r}, which [space] does not have") from error
    except Exception:  # noqa: BLE001 - a fault of the user's code is its trials' result
        return []
    Scoring(config.metric, config.maximize).key(dict.fromkeys(names))
    return _misspelt(config.space, hp)


def _misspelt(space: Mapping[str, Any], hp: Hyperparameters) -> list[str]:
    """Return a line for each hyper-parameter that the model did not read and that resembles a missing one."""
    read = set(hp.names_read)
    if ALL_NAMES in read:
        return []
    wanted = {*(each.name for each in dataclasses.fields(OptimizerSettings)), *read}
    near = {name: difflib.get_close_matches(name, wanted - set(space), 1, ALMOST) for name in set(hp) - wanted}
    return [
        f"space: the model does not read {name}: if nothing does, did you mean {found[0]}?"
        for name, found in sorted(near.items())
        if found
    ]


def training_problem(prepared: PreparedTrain, source: Source, code: Any) -> Problem:
    """Load the data, and check that the model can be made and the metric exists. Raises BadInput."""
    config = prepared.config
    if not isinstance(code, Experiment):
        what = "raygpu.train takes a TorchExperiment or a KerasExperiment"
        raise BadInput(f"{'command' if code is None else 'experiment'}: {source.name} is a {source.kind}; {what}")
    if source.kind == "torch" and config.devices_per_worker > 1:
        raise BadInput(
            f"devices_per_worker: read {config.devices_per_worker}; a worker of torch drives one: take more --workers"
        )
    if source.kind == "keras" and config.compile:
        raise BadInput("compile: read true, which is torch.compile; a Keras model's steps are graphs already")
    if config.epochs is None:
        raise BadInput("epochs: not given; a TorchExperiment or KerasExperiment trains for a fixed number of epochs")
    splits = load_data(config, source, code)
    try:
        names = _metric_names(source, code, config.hyperparameters, splits)
    except MissingHyperparameter as error:
        raise BadInput(
            f"hyperparameters: {config.experiment} reads {error.name!r}, which [hyperparameters] does not have"
        ) from error
    except Exception as error:  # the user's code: whatever it raises is the message
        raise BadInput(f"experiment: {source.name}: an evaluation failed: {one_line(error)}") from error
    Scoring(config.metric, config.maximize).key(dict.fromkeys(names))
    return Problem(source, code, splits.part(config.data.fraction, config.seed))


def require_fitting(found: Problem, hyperparameters: Mapping[str, Any], checkpoint: Storage, flag: str) -> None:
    """Raise BadInput if a checkpoint is not of this model. flag: the flag that named it."""
    splits = found.splits
    assert splits is not None
    try:
        with checkpoint.fetched() as folder:
            trained_model(found.source, found.code, lambda: splits, hyperparameters, folder)
    except Exception as error:
        model = f"{found.source.name} with these hyper-parameters"
        raise BadInput(f"{flag}: {checkpoint} is no checkpoint of {model}: {one_line(error)}") from error


def trained_model(
    source: Source, code: Experiment, data: Callable[[], Splits], hp: Mapping[str, Any], checkpoint: Path
) -> Any:
    """Load the model of a checkpoint, on the CPU. data: returns samples, which give shapes to a Keras model."""
    with contextlib.chdir(source.folder):
        if source.kind == "torch":
            from raygpu.training.torch import solo as torch_solo

            return torch_solo.trained_model(code, hp, checkpoint)
        from raygpu.training.keras import solo as keras_solo

        return keras_solo.trained_model(code, hp, checkpoint, take(data().validation_inputs, slice(0, 2)))


def require_one_fitting(found: Problem, hyperparameters: Mapping[str, Any], checkpoints: Sequence[Storage]) -> None:
    """Raise BadInput if none of a run's checkpoints, the latest first, is of this model; the latest may be cut
    short."""
    faults: list[BadInput] = []
    for checkpoint in checkpoints:
        try:
            return require_fitting(found, hyperparameters, checkpoint, "--resume")
        except BadInput as error:
            faults.append(error)
    if faults:
        raise faults[0]


def _metric_names(source: Source, code: Experiment, hp: Mapping[str, Any], splits: Splits) -> list[str]:
    if source.kind == "torch":
        from raygpu.training.torch.solo import metric_names
    else:
        from raygpu.training.keras.solo import metric_names
    with contextlib.chdir(source.folder):
        return metric_names(code, hp, splits)
