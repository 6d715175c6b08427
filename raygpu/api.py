"""The commands from Python and notebooks.

    run = raygpu.run_sweep(Mlp, space={"lr": raygpu.loguniform(1e-3, 1), "hidden": 128}, trials=64, epochs=20)
    run.best.hyperparameters, run.best.load_model(), run.to_dataframe()
    training = raygpu.run_training(run.best, register="digits")

Arguments are the fields of the configuration files; sections are dicts: `gpu={"fraction": 0.2}`. With a trial, they are
laid over its sweep's settings key by key. Faults are exceptions with the lines that the commands print.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from raygpu import balance, deliver, pack, place, submit, sweep, train
from raygpu.cli.flags import as_flag
from raygpu.config import (
    BalanceConfig,
    PackConfig,
    PlaceConfig,
    ProblemConfig,
    SweepConfig,
    TrainConfig,
    laid_over,
    own_place,
    read_toml,
    validated,
)
from raygpu.config.flag_texts import flag_texts
from raygpu.errors import BadInput
from raygpu.records.best_trial import training_values
from raygpu.records.clock import begin_call
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import cut_short
from raygpu.workflow.by_value import named
from raygpu.workflow.opened_run import BalanceRun, PackRun, PlaceRun, SweepRun, SweepTrial, TrainRun, as_trial, open_run
from raygpu.workflow.promotion import DIVERGED, NO_SCHEDULE, promoted, with_sweep_settings
from raygpu.workflow.ray_startup import one_at_a_time

__all__ = [
    "open_run",
    "run_balance",
    "run_delivery",
    "run_pack",
    "run_placement",
    "run_submission",
    "run_sweep",
    "run_training",
]
CODE = ".experiments"
"""Folder below runs_dir for experiments that travel by value."""


@one_at_a_time()
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
    begin_call()
    if resume is not None:
        if experiment is not None or space is not None:
            raise BadInput("run_sweep: resume goes on with the sweep's own experiment and space")
        earlier = RunDirectory.existing(resume.folder if isinstance(resume, SweepRun) else resume, flag="resume")
        config = sweep.resumed_config(earlier, flag_texts(fields))
        result = sweep.run(config, source_folder=earlier.source_folder, resume=earlier, retry_failed=retry_failed)
    else:
        values = {"space": dict(space or {}), **_with_experiment(experiment, fields)}
        result = sweep.run(validated(values, SweepConfig, "run_sweep"), stem=_stem(experiment))
    assert result.folder is not None
    return SweepRun(RunDirectory.existing(result.folder, current=False))


@one_at_a_time()
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
    hyperparameters: values in addition to, or in place of, the trial's, whose names are found as by flags: net.lr is
    lr of the table net where there is one. register: name of the model in MLflow's registry. warm_start: whether to
    begin with the trial's parameters. fields: those of `raygpu.config.TrainConfig`. Raises BadInput, RaygpuError, and
    KeyboardInterrupt before the first checkpoint.
    """
    start = _start(what, fields, hyperparameters, TrainConfig)
    if register is not None:
        start.values["registered_name"] = register
    checkpoint = start.trial.checkpoint if warm_start and start.trial is not None else None
    if warm_start and checkpoint is None:
        raise BadInput("run_training: warm_start takes the checkpoint of a sweep's trial, and there is none")
    config = validated(start.values, TrainConfig, "run_training")
    result = train.run(config, stem=start.stem, source_folder=start.folder, warm_start=checkpoint)
    assert result.folder is not None
    return TrainRun(RunDirectory.existing(result.folder, "train", current=False))


@one_at_a_time()
def run_pack(what: Any = None, *, hyperparameters: Mapping[str, Any] | None = None, **fields: Any) -> PackRun:
    """Measure how many trainings one GPU carries, and which way of sharing it is fastest.

    what, hyperparameters: as of `run_training`; a distribution is drawn once. fields: those of
    `raygpu.config.PackConfig`. Raises BadInput, RaygpuError and KeyboardInterrupt.
    """
    start = _start(what, fields, hyperparameters, PackConfig)
    config = validated(start.values, PackConfig, "run_pack")
    result = pack.run(config, stem=start.stem, source_folder=start.folder)
    return PackRun(result.profile, result.folder, tuple(result.verdict))


@one_at_a_time()
def run_balance(what: Any = None, *, hyperparameters: Mapping[str, Any] | None = None, **fields: Any) -> BalanceRun:
    """Measure how a batch is split best over unequal devices.

    what, hyperparameters: as of `run_training`. fields: those of `raygpu.config.BalanceConfig`. Raises BadInput,
    RaygpuError and KeyboardInterrupt.
    """
    start = _start(what, fields, hyperparameters, BalanceConfig)
    config = validated(start.values, BalanceConfig, "run_balance")
    result = balance.run(config, stem=start.stem, source_folder=start.folder)
    return BalanceRun(RunDirectory.existing(result.folder, "balance", current=False))


@one_at_a_time()
def run_placement(what: Any = None, *, hyperparameters: Mapping[str, Any] | None = None, **fields: Any) -> PlaceRun:
    """Compare placements of a model's parts on several devices.

    what, hyperparameters: as of `run_training`. fields: those of `raygpu.config.PlaceConfig`, as
    `placements={"towers": {"user_tower": 0, "item_tower": 1}}`. Raises BadInput, RaygpuError and KeyboardInterrupt.
    """
    start = _start(what, fields, hyperparameters, PlaceConfig)
    config = validated(start.values, PlaceConfig, "run_placement")
    result = place.run(config, stem=start.stem, source_folder=start.folder)
    return PlaceRun(RunDirectory.existing(result.folder, "place", current=False))


def run_delivery(run: Path | str | SweepRun | TrainRun) -> bool:
    """Deliver to MLflow what it lacks of a run; return whether it then lacks nothing.

    Raises BadInput if the run is not tracked, and TrackingError.
    """
    where = run.folder if isinstance(run, SweepRun | TrainRun) else run
    return deliver.run(RunDirectory.existing(where, None, "run_delivery"), {}, print)


def run_submission(command: str, file: Path | str, *, address: str | None = None, **fields: Any) -> str:
    """Submit a command to a Ray cluster as a job, or to Slurm by `slurm={...}`; return the job's id.

    command: sweep, pack, train, balance or place. file: its configuration. address: of the cluster's dashboard, by
    default RAY_API_SERVER_ADDRESS. fields: those of the command's configuration. Raises BadInput, RaygpuError.
    """
    table = read_toml(Path(file)).get("hyperparameters", {}) if "hyperparameters" in fields else {}
    flags = [f"{as_flag(name)}={text}" for name, text in flag_texts(fields, table).items()]
    _, job_id = submit.submitted(command, [str(file), *flags], {} if address is None else {"address": address}, print)
    return job_id


@dataclass(frozen=True, slots=True)
class _Start:
    """A command about to begin."""

    values: dict[str, Any]
    """Values of its configuration."""
    folder: Path
    """Folder at which the experiment's relative paths start."""
    stem: str
    """First part of the name of a run that is not named."""
    trial: SweepTrial | None
    """Trial of a sweep that is trained again."""


def _start(
    what: Any, fields: Mapping[str, Any], hyperparameters: Mapping[str, Any] | None, schema: type[ProblemConfig]
) -> _Start:
    """Return the start of a command for a trial, for the best trial of a sweep, or for an experiment."""
    begin_call()
    if isinstance(what, SweepRun) and what.best is None:
        raise BadInput(f"{what.folder} has no best trial: none has a finite score")
    trial = what.best if isinstance(what, SweepRun) else what if isinstance(what, SweepTrial) else None
    if trial is None:
        values, folder, stem = _with_experiment(what, fields), Path.cwd(), _stem(what)
    else:
        if schema is TrainConfig and trial.status == "diverged":
            raise BadInput(f"run_training: {DIVERGED.format(trial_id=trial.trial_id, instead='trial')}")
        items = _of_trial(trial).items()
        settings = {name: value for name, value in items if name in schema.model_fields or name == "hyperparameters"}
        sweep_name, folder = trial.sweep.name, trial.sweep.directory.source_folder
        values, stem = laid_over(settings, fields), f"{sweep_name}-{'train' if schema is TrainConfig else 'measured'}"
    own_values = {**values.pop("hyperparameters", {}), **values.get(schema.TABLE, {})}
    for name, value in (hyperparameters or {}).items():
        is_of_trial = trial is not None and isinstance(name, str)
        table, leaf = own_place(own_values, name) if is_of_trial else (own_values, name)
        table[leaf] = value
    values[schema.TABLE] = own_values
    return _Start(values, folder, stem, trial)


def _of_trial(trial: SweepTrial) -> dict[str, Any]:
    """Return the values of a training of a trial. Raises BadInput for one of a population that is not its best."""
    config, best = trial.sweep.config, trial.sweep.best
    if config.population.interval is not None:
        if best is None or trial.trial_id != best.trial_id:
            raise BadInput(NO_SCHEDULE.format(trial_id=trial.trial_id, instead="name the sweep, or its best trial"))
        promotion = promoted(str(trial.sweep.folder), lambda: config.tracking, checkpoint=False)
        return promotion.values | {"runs_dir": config.runs_dir}
    values = training_values(
        config,
        trial.sweep.name,
        as_trial(trial),
        score=trial.score,
        score_epoch=trial.score_epoch,
        epochs=config.epochs or trial.epochs,
        ended=cut_short(trial.status, trial.epochs, config.epochs),
    )
    values = with_sweep_settings(values, config, trial.sweep.directory.read_run().get("mlflow_run_id"))
    return values | {"runs_dir": config.runs_dir}


def _with_experiment(experiment: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields with the experiment's name, as a configuration has it."""
    if experiment is None:
        return dict(fields)
    runs_dir = fields.get("runs_dir", SweepConfig.model_fields["runs_dir"].default)
    if not isinstance(runs_dir, str | PathLike):
        raise BadInput(f"runs_dir: read {runs_dir!r}; the path of a folder is wanted, or leave it out")
    return {**fields, "experiment": named(experiment, Path(runs_dir) / CODE)}


def _stem(experiment: Any) -> str:
    """Return the first part of the name of a run that is not named."""
    name = experiment if isinstance(experiment, str) else getattr(experiment, "__name__", "sweep")
    return "".join(letter for letter in name.rpartition(":")[2] if letter.isalnum()).lower() or "run"
