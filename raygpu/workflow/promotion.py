"""Promotion of a sweep's trial to production, as the values of a training's configuration."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.config import SweepConfig, TrainConfig, load, read_toml
from raygpu.config.loading import laid_over
from raygpu.config.sections import TrackingSection
from raygpu.errors import BadInput
from raygpu.records import scratch
from raygpu.records.best_trial import training_values
from raygpu.records.run_directory import RunDirectory
from raygpu.records.slurm_job import SEED_OFFSET
from raygpu.search.repeats import Repetition
from raygpu.search.scoring import Scoring
from raygpu.search.space import parse
from raygpu.search.trials import Trial
from raygpu.storage import Storage, StorageError
from raygpu.tracking.values import MAX_PARAM, allowed_name, distinct_name, text
from raygpu.tracking.winner_files import winner_checkpoint

if TYPE_CHECKING:
    from raygpu.tracking.origins import Origin

RUN_ID = re.compile(r"[0-9a-f]{32}")
"""Form of an MLflow run's id."""


NO_SCHEDULE = "trial {trial_id} belongs to a population, and only its best one's schedule is kept: {instead}"
DIVERGED = "trial {trial_id} diverged, and would again; name another {instead}"


@dataclass(frozen=True, slots=True)
class Promotion:
    """A trial that is to be trained for production."""

    name: str
    """Name of the sweep's run."""
    values: dict[str, Any]
    """Values of a TrainConfig."""
    source_folder: Path
    """Folder at which the experiment's relative paths start."""
    checkpoint: Path | None
    """Folder of the trial's checkpoint; None if it was not kept, or is not wanted."""


def promoted(origin: str, tracking: Callable[[], TrackingSection], checkpoint: bool) -> Promotion:
    """Return the best trial of a sweep, by its folder or MLflow run; or the trial whose MLflow run is named.

    tracking: returns the settings of the MLflow store. checkpoint: whether the trial's checkpoint is wanted, which may
    have to be downloaded. Raises BadInput, and TrackingError.
    """
    if RUN_ID.fullmatch(origin) and not Path(origin).exists():
        return _of_run(origin, tracking(), checkpoint=checkpoint)
    return _of_folder(origin, checkpoint=checkpoint)


def with_own_seed(values: Mapping[str, Any], variables: MutableMapping[str, str]) -> dict[str, Any]:
    """Return a promoted trial's values with the seed of its job in a Slurm array: the trial's, and the job's index.

    variables: of the process. That of the index is taken out of them: it is for this training, and no other.
    """
    seed, offset = values.get("seed", 0), variables.pop(SEED_OFFSET, None)
    if offset is None or type(seed) is not int:  # validation refuses another one
        return dict(values)
    return {**values, "seed": seed + int(offset)}


def named_store(
    overrides: Mapping[str, str], file: Path | None, given: TrackingSection | None = None
) -> TrackingSection:
    """Return the tracking settings of a training by its flags and its file. Raises BadInput.

    given: settings below those of the file.
    """
    flags = {name: text for name, text in overrides.items() if name.startswith("tracking.")}
    tables = {"tracking": read_toml(file).get("tracking", {})} if file is not None else {}
    base: dict[str, Any] = {"tracking": given.model_dump()} if given is not None else {}
    return load(None, flags, TrainConfig, {"experiment": "any:Any"} | laid_over(base, tables)).tracking.found()


def store_to_be(origin: str, overrides: Mapping[str, str], file: Path | None) -> TrackingSection:
    """Return the tracking settings that the training of a promoted trial will have; opens no store.

    A sweep that is not there yet, or out of this machine's reach, says nothing of its store. Raises BadInput.
    """
    if RUN_ID.fullmatch(origin) and not Path(origin).exists():
        return named_store(overrides, file)
    try:
        if "://" in origin:
            sweep = _stored_sweep(Storage.at(origin))
        else:
            sweep = load(RunDirectory.existing(origin, flag="--from", current=False).config, {}, SweepConfig)
    except (BadInput, StorageError, FileNotFoundError):
        return named_store(overrides, file)
    return named_store(overrides, file, sweep.tracking)


def _stored_sweep(folder: Storage) -> SweepConfig:
    """Return the configuration of a sweep in object storage, and download nothing else of it.

    Raises BadInput, StorageError, and FileNotFoundError.
    """
    folder.require_answer()
    with tempfile.TemporaryDirectory(prefix="raygpu-") as here:
        file = Path(here, "config.toml")
        file.write_bytes(folder.read(file.name))
        return load(file, {}, SweepConfig)


def _of_folder(where: str, *, checkpoint: bool) -> Promotion:
    if "://" not in where and not Path(where).is_dir():
        raise BadInput(f"--from: {where}: no such folder; name a sweep's, as in runs/digits, or an MLflow run's id")
    folder = RunDirectory.existing(where, flag="--from")
    if not folder.best_toml.is_file():
        raise BadInput(f"--from: {where} has no {folder.best_toml.name}: {_why(folder)}")
    values = read_toml(folder.best_toml)
    trial_id = _trial_id(values, folder.best_toml)
    sweep = load(folder.config, {}, SweepConfig)
    best_checkpoint = folder.checkpoint(trial_id) if checkpoint else None
    values = with_sweep_settings(values, sweep, folder.read_run().get("mlflow_run_id"))
    return Promotion(folder.name, values, folder.source_folder, best_checkpoint)


def _trial_id(best: Mapping[str, Any], file: Path) -> str:
    """Return the id of the trial of a `best.toml`. Raises BadInput if it names none."""
    source = best.get("source")
    try:
        return Trial.require_name(source.get("trial_id") if isinstance(source, dict) else None)
    except ValueError as error:
        raise BadInput(f"--from: {file}: source.trial_id: {error}") from error


def _why(folder: RunDirectory) -> str:
    """Return why a sweep's folder has no best trial's file, with the counts of trials without a score if it has
    ended."""
    summary = folder.read_summary() or {}
    if summary.get("best") is not None:
        return f"it was lost; {folder.resumed_by('sweep')} writes it anew"
    counts = [f"{summary[name]} {name}" for name in ("diverged", "failed", "interrupted") if summary.get(name)]
    told = f" ({', '.join(counts)})" if counts else ""
    return f"no trial of that sweep has ended with a score{told}"


def _of_run(run_id: str, tracking: TrackingSection, *, checkpoint: bool) -> Promotion:
    from raygpu.tracking.origins import origin

    files = Path(tempfile.mkdtemp(prefix="origin-", dir=scratch.home()))
    run = origin(tracking.uri, tracking.experiment, run_id, files, checkpoint=checkpoint)
    if not (files / "config.toml").is_file():
        raise BadInput(f"--from: run {run_id}: MLflow has no config.toml of its sweep")
    sweep = load(files / "config.toml", {}, SweepConfig)
    best = read_toml(files / "best.toml") if (files / "best.toml").is_file() else None
    if best is None and run.trial_id is None:
        raise BadInput(f"--from: run {run_id} has no best.toml: no trial of that sweep has ended with a score")
    if run.diverged:
        why = DIVERGED.format(trial_id=run.trial_id, instead="trial's")
        raise BadInput(f"--from: run {run_id}: {why}")
    is_best = best is not None and run.trial_id in (None, _trial_id(best, Path(f"best.toml of run {run_id}")))
    if not is_best and sweep.population.interval is not None:
        why = NO_SCHEDULE.format(trial_id=run.trial_id, instead="name the sweep's run")
        raise BadInput(f"--from: run {run_id}: {why}")
    values = best if is_best else _of_trial(sweep, run)
    assert values is not None
    values = with_sweep_settings(values, sweep, run.sweep_run_id)
    values["tracking"] = tracking.model_dump()
    return Promotion(run.sweep, values, Path.cwd(), winner_checkpoint(files) if is_best and checkpoint else None)


def _of_trial(config: SweepConfig, run: Origin) -> dict[str, Any]:
    """Return the content that `best.toml` would have for a trial, by what MLflow keeps of it."""
    scoring, metrics, trial_id = Scoring.of(config), run.metrics, str(run.trial_id)
    score, score_epoch = replace(scoring, metric=allowed_name(scoring.metric)).value(metrics), None
    if config.score == "best" and "best/score" in metrics:
        score, score_epoch = metrics["best/score"], int(metrics["best/epoch"])
    space = parse(config.space, config.search.algorithm)
    names: list[str] = []

    def kept_text(name: str) -> str | None:
        """Return a hyper-parameter's text, by the name that it got in MLflow beside those before it."""
        names.append(distinct_name(name, names))
        return run.params.get(names[-1])

    hyperparameters = space.from_texts(kept_text, lambda value: text(value)[:MAX_PARAM])
    try:
        seed = Repetition.of(config).seed_of(Trial.require_name(trial_id), config.seed)
    except ValueError as error:
        raise BadInput(f"--from: raygpu.trial_id: {error}") from error
    trial = Trial(trial_id, seed, hyperparameters)
    ended = run.stopped if run.stopped in (None, "interrupted") else f"stopped early ({run.stopped})"
    return training_values(
        config, run.sweep, trial, score=score, score_epoch=score_epoch, epochs=config.epochs, ended=ended
    )


def with_sweep_settings(values: dict[str, Any], sweep: SweepConfig, run_id: str | None) -> dict[str, Any]:
    """Add the sweep's tracking settings, precision, data kind and seed, and its MLflow run's id, to the values."""
    values["tracking"] = sweep.tracking.model_dump()
    values["gpu"] = {"precision": sweep.gpu.precision, **values.get("gpu", {})}
    source = values["source"]
    source.setdefault("data_seed", sweep.seed)
    if source.get("data") == "synthetic":
        values["data"] = {"synthetic": True}
    if sweep.data.samples_per_epoch is not None:  # in which the trial's epochs are counted
        values["data"] = {**values.get("data", {}), "samples_per_epoch": sweep.data.samples_per_epoch}
    if run_id is not None:
        source["mlflow_run_id"] = run_id
    return values
