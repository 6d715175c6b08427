"""`best.toml`, a sweep's best trial as the values of a production training's configuration."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from typing import Any

import tomli_w

from raygpu.config import SweepConfig, TrainConfig, read_toml
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.records.whole_files import write_whole
from raygpu.search.command_line import filled
from raygpu.search.trial_record import TrialRecord, cut_short
from raygpu.search.trials import Trial


def write_best(
    folder: RunDirectory,
    config: SweepConfig,
    best: TrialRecord,
    *,
    score: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Write the file.

    score: that of the trial's set, as the summary has it; by default the trial's own. values: those that differ from
    the trial's own, as the schedule of a population's winner.
    """
    trial_values = training_values(
        config,
        folder.name,
        best.trial,
        score=best.score,
        score_epoch=best.score_epoch,
        epochs=config.epochs or best.epochs,
        of_set=score,
        ended=cut_short(best.status, best.epochs, config.epochs),
    )
    overrides = dict(values or {})
    source = trial_values["source"] | overrides.pop("source", {})
    write_whole(folder.best_toml, tomli_w.dumps({**trial_values, **overrides, "source": source}))


def is_best(folder: RunDirectory, trial: TrialRecord) -> bool:
    """Return whether the file is of this trial, scored at the same epoch."""
    try:
        source = read_toml(folder.best_toml).get("source", {}) if folder.best_toml.is_file() else {}
    except BadInput:  # somebody has edited it
        return False
    return bool(source.get("trial_id") == trial.trial.trial_id and source.get("epoch") == trial.score_epoch)


def add_to_best(folder: RunDirectory, source: Mapping[str, Any]) -> None:
    """Add values to the file's `source`, which says where the best trial comes from."""
    values = read_toml(folder.best_toml)
    values["source"] = {**values["source"], **source}
    write_whole(folder.best_toml, tomli_w.dumps(values))


def drop_best(folder: RunDirectory) -> None:
    """Delete the best trial's files, for instance when the best trial of an interrupted sweep has diverged since."""
    folder.best_toml.unlink(missing_ok=True)
    drop_description(folder)


def drop_description(folder: RunDirectory) -> None:
    """Delete the architecture and the predictions of the best trial so far."""
    shutil.rmtree(folder.best, ignore_errors=True)
    if folder.storage is not None:
        (folder.storage / folder.best.name).remove()


def training_values(
    config: SweepConfig,
    sweep: str,
    trial: Trial,
    *,
    score: float | None,
    score_epoch: int | None,
    epochs: int | None,
    of_set: Mapping[str, Any] | None = None,
    ended: str | None = None,
) -> dict[str, Any]:
    """Return the values of a TrainConfig that trains a trial again; without those that are None.

    sweep: name of its run. score_epoch: epoch of the score. epochs: number of epochs to train. of_set: score of the
    set that the trial repeats, in place of its own, as the summary has it. ended: where the trial ended before its last
    epoch, how.
    """
    direction = "max" if config.maximize else "min"
    source: dict[str, Any] = {"sweep": sweep, "trial_id": trial.trial_id, "data_seed": config.seed}
    if score is not None:
        source |= {"score": score, "epoch": score_epoch, "score_of": f"{config.score} epoch"}
        source |= {"metric": config.metric, "direction": direction, "folds": config.folds}
        source |= {name: value for name, value in (of_set or {}).items() if name != "scores"}
    if ended is not None:
        source["ended"] = ended
    if config.data.synthetic:
        source["data"] = "synthetic"
    if (line := command_line(config, trial)) is not None:
        source["command_line"] = line
    values = {
        "experiment" if config.experiment else "command": config.experiment or config.command,
        "metric": config.metric,
        "direction": direction,
        "epochs": epochs,
        "seed": trial.seed,
        "hyperparameters": dict(trial.hyperparameters),
        **training_settings(config),
        "source": _given(source),
    }
    return _given(values)


def training_settings(config: SweepConfig) -> dict[str, dict[str, Any]]:
    """Return the tables of settings, beside the hyper-parameters, on which a trial's training depends: those that are
    not the default."""
    tables = {"gpu": config.gpu.model_dump(include={"precision"}, exclude_defaults=True)}
    tables["data"] = config.data.model_dump(include={"synthetic", "samples_per_epoch"}, exclude_defaults=True)
    return {name: table for name, table in tables.items() if table}


def command_line(config: SweepConfig, trial: Trial) -> str | None:
    """Return the command line, quoted for a shell, that trained a trial; None if the sweep trains no script."""
    return None if config.command is None else shlex.join(filled(config.command, trial, config.epochs, config.folds))


def unlike_trial(config: TrainConfig) -> str | None:
    """Return why a training's score cannot be compared with that of the trial it comes from; None if it can, or there
    is none."""
    source = config.source
    ours = config.metric, "max" if config.maximize else "min"
    theirs = source.get("metric", ours[0]), source.get("direction", ours[1])
    if "score" not in source:
        return None
    if ours != theirs:
        return f"which was scored by {theirs[0]} ({theirs[1]})"
    return f"which was scored over {source['folds']} folds of the data" if source.get("folds") else None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the values that are None: TOML has no null."""
    return {name: value for name, value in values.items() if value is not None}
