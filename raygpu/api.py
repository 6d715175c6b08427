"""The commands from Python and notebooks.

    run = raygpu.run_sweep(Mlp, space={"lr": raygpu.loguniform(1e-3, 1), "hidden": 128}, trials=64, epochs=20)
    run.best.hyperparameters, run.best.load_model(), run.to_dataframe()
    training = raygpu.run_training(run.best, register="digits")

Arguments are the fields of the configuration files; sections are dicts: `gpu={"fraction": 0.2}`. Faults are exceptions
with the lines that the commands print.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raygpu import sweep, train
from raygpu.config import SweepConfig, TrainConfig, validated
from raygpu.errors import BadInput
from raygpu.records.best_trial import training_values
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.by_value import named
from raygpu.workflow.opened_run import SweepRun, SweepTrial, TrainRun, as_trial, open_run
from raygpu.workflow.promotion import with_sweep_settings

__all__ = ["open_run", "run_sweep", "run_training"]
CODE = ".experiments"
"""Folder below runs_dir for experiments that travel by value."""


def run_sweep(
    experiment: Any = None,
    *,
    space: Mapping[str, Any] | None = None,
    resume: Path | str | SweepRun | None = None,
    retry_failed: bool = False,
    **fields: Any,
) -> SweepRun:
    """Search for hyper-parameters; return the sweep, which Ctrl-C or the stop button ends early.

    experiment: a class, a function, or a name as in a configuration; it may be defined in a notebook. space: a
    distribution or a constant for each hyper-parameter. resume: a sweep to go on with; then only the fields that a
    resume takes may be given. retry_failed: whether its failed trials run again. fields: those of
    `raygpu.config.SweepConfig`. Raises BadInput, RaygpuError, and KeyboardInterrupt before the first score.
    """
    if resume is not None:
        if experiment is not None or space is not None:
            raise BadInput("run_sweep: resume goes on with the sweep's own experiment and space")
        earlier = RunDirectory.existing(resume.folder if isinstance(resume, SweepRun) else resume, flag="resume")
        config = sweep.resumed_config(earlier, {name: str(value) for name, value in fields.items()})
        result = sweep.run(config, source_folder=earlier.source_folder, resume=earlier, retry_failed=retry_failed)
    else:
        values = {"space": dict(space or {}), **_with_experiment(experiment, fields)}
        result = sweep.run(validated(values, SweepConfig, "run_sweep"), stem=_stem(experiment))
    assert result.folder is not None
    return SweepRun(RunDirectory.existing(result.folder))


def run_training(
    what: Any = None,
    *,
    hyperparameters: Mapping[str, Any] | None = None,
    register: str | None = None,
    warm_start: bool = False,
    **fields: Any,
) -> TrainRun:
    """Train one set of hyper-parameters on all GPUs.

    what: a trial of a sweep, a sweep, of which the best trial counts, or an experiment as of `run_sweep`.
    hyperparameters: values in addition to, or in place of, the trial's. register: name of the model in MLflow's
    registry. warm_start: whether to begin with the trial's parameters. fields: those of `raygpu.config.TrainConfig`.
    Raises BadInput, RaygpuError, and KeyboardInterrupt before the first checkpoint.
    """
    if isinstance(what, SweepRun) and what.best is None:
        raise BadInput(f"run_training: {what.folder} has no best trial: none has a finite score")
    trial = what.best if isinstance(what, SweepRun) else what if isinstance(what, SweepTrial) else None
    if trial is not None:
        values, folder, stem = (
            _of_trial(trial) | fields,
            trial.sweep.directory.source_folder,
            f"{trial.sweep.name}-train",
        )
    else:
        values, folder, stem = _with_experiment(what, fields), Path.cwd(), _stem(what)
    values["hyperparameters"] = {**values.get("hyperparameters", {}), **(hyperparameters or {})}
    if register is not None:
        values["registered_name"] = register
    checkpoint = trial.checkpoint if warm_start and trial is not None else None
    if warm_start and checkpoint is None:
        raise BadInput("run_training: warm_start takes the checkpoint of a sweep's trial, and there is none")
    config = validated(values, TrainConfig, "run_training")
    result = train.run(config, stem=stem, source_folder=folder, warm_start=checkpoint)
    assert result.folder is not None
    return TrainRun(RunDirectory.existing(result.folder, "train"))


def _of_trial(trial: SweepTrial) -> dict[str, Any]:
    config = trial.sweep.config
    values = training_values(
        config,
        trial.sweep.name,
        as_trial(trial),
        score=trial.score,
        score_epoch=trial.score_epoch,
        epochs=config.epochs or trial.epochs,
    )
    values = with_sweep_settings(values, config, trial.sweep.directory.read_run().get("mlflow_run_id"))
    return values | {"runs_dir": config.runs_dir}


def _with_experiment(experiment: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the experiment's name, as a configuration has it."""
    if experiment is None:
        return dict(fields)
    runs_dir = Path(fields.get("runs_dir", SweepConfig.model_fields["runs_dir"].default))
    return {**fields, "experiment": named(experiment, runs_dir / CODE)}


def _stem(experiment: Any) -> str:
    """Return the first part of the name of a run that is not named."""
    name = experiment if isinstance(experiment, str) else getattr(experiment, "__name__", "sweep")
    return "".join(letter for letter in name.rpartition(":")[2] if letter.isalnum()).lower() or "run"
