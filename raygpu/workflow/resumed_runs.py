"""Refuse to go on with a sweep or a training in another way than it began: by another version's state, or with other
values of the fields that say what is trained and how it is compared. Scores would not compare."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from raygpu.config import ProblemConfig, SweepConfig, TrainConfig, load
from raygpu.errors import BadInput
from raygpu.records import slurm_job
from raygpu.records.run_directory import KINDS, RunDirectory

STATE = 6
"""Version of the state that a run keeps for `--resume`; another one cannot be read."""
VERSION, BEGUN, SETS, TOTALS = "state", "begun", "begun_sets", "totals"
"""Keys, in the run's state, of this version, of the fixed fields at the start, of a sweep's number of sets there, and
of its numbers of trials and repeats at its last start, of which there cannot be fewer later."""
OF_SWEEP: Mapping[str, Any] = {
    **dict.fromkeys(("experiment", "command", "data", "folds", "seed", "epochs"), True),
    **dict.fromkeys(("metric", "direction", "metrics", "directions", "score"), True),
    **dict.fromkeys(("start", "start_from", "start_best", "search", "stopping", "population", "space"), True),
    **dict.fromkeys(("racing", "script"), True),
    "gpu": {"mode", "width", "fraction", "precision", "mps"},
}
"""Fields that stay as they were at a sweep's start. `[gpu]` is compared as the file has it: what was chosen in place of
auto is kept beside it (`read_config`). The GPUs themselves, and whether memory is limited, may change."""
ACCUMULATE = "accumulate"
"""Field that may change where the run's state has the global batch, which a resume then takes: it sets the size of the
parts alone."""
OF_TRAINING = dict.fromkeys(("experiment", "data", "seed", "metric", "direction", "global_batch", ACCUMULATE), True)
"""Fields that stay as they were at a training's start, beside the hyper-parameter `batch_size`."""
BATCH_SIZE = "batch_size"
"""Hyper-parameter that sets the batch and, where the learning rate is scaled, that too."""
TABLES = ("space.", "script.metrics.")
"""Beginnings of the names that a user chooses: a new one is a change."""
LIMITS = ("trial_timeout_s", "silence_timeout_s", "time_budget_s")
"""Limits of time, which a resumed sweep may change."""
LEAST_S = 1.0
"""Time budget of a start that finds it used up: it writes the results, and trains no more."""
STATE_FILES = "experiment_state-*.json"


def begun_sweep(folder: RunDirectory) -> dict[str, Any]:
    """Return what a resumed sweep is compared with, for the state of a run whose configuration is written."""
    config = load(folder.config, {}, SweepConfig)
    return {VERSION: STATE, BEGUN: _fields(config, OF_SWEEP), SETS: config.trials, TOTALS: _totals(config)}


def begun_training(folder: RunDirectory) -> dict[str, Any]:
    """Return what a resumed training is compared with, for the state of a run whose configuration is written."""
    return {VERSION: STATE, BEGUN: _of_training(load(folder.config, {}, TrainConfig))}


def begun_sets(folder: RunDirectory) -> int | None:
    """Return the number of sets with which a sweep began; None of one that has not begun yet, or runs a whole grid."""
    noted = folder.read_run()
    return noted[SETS] if noted.get(VERSION) == STATE else None


def require_same_sweep(folder: RunDirectory) -> None:
    """Raise BadInput if another version of raygpu began the sweep, or if its file has changed in what cannot."""
    if _has_begun(folder, kept=bool(fnmatch.filter(folder.tune.files(), STATE_FILES))):
        _require_same(folder, folder.read_run()[BEGUN], _fields(load(folder.config, {}, SweepConfig), OF_SWEEP))


def require_same_training(folder: RunDirectory, config: TrainConfig) -> None:
    """Raise BadInput if another version of raygpu began the training, or if a field has changed that cannot."""
    if not _has_begun(folder, kept=bool(folder.training_checkpoints())):
        return
    state, now = folder.read_run(), _of_training(config)
    begun = state[BEGUN]
    if state.get("global_batch") is not None:
        begun, now = ({name: fields[name] for name in fields if name != ACCUMULATE} for fields in (begun, now))
    _require_same(folder, begun, now)


def _has_begun(folder: RunDirectory, *, kept: bool) -> bool:
    """Return whether a run goes on, else it begins now. kept: whether there is anything to go on from. Raises BadInput
    if that is another version's."""
    if folder.read_run().get(VERSION) == STATE:
        return True
    if kept:
        raise BadInput(
            f"resume: {folder}: another version of raygpu began it, whose state this one cannot read; go on with that"
            f" version, or begin a new {KINDS[folder.kind]}; its results are as they were"
        )
    return False


def _of_training(config: TrainConfig) -> dict[str, Any]:
    batch = {BATCH_SIZE: config.hyperparameters.get(BATCH_SIZE)}
    return _fields(config, OF_TRAINING) | {"hyperparameters": batch}


def in_the_time_left(folder: RunDirectory, config: SweepConfig) -> SweepConfig:
    """Return the configuration with what the earlier starts of the Slurm job that goes on have left of the budget."""
    used_s = slurm_job.used_s(folder.path)
    if config.time_budget_s is None or not used_s:
        return config
    return config.model_copy(update={"time_budget_s": max(LEAST_S, config.time_budget_s - used_s)})


def _totals(config: SweepConfig) -> dict[str, Any]:
    return {"trials": config.trials, "repeats": config.repeats}


def require_no_fewer(folder: RunDirectory, config: SweepConfig) -> None:
    """Raise BadInput if a sweep is to go on with fewer trials or repeats than it has, by a flag or its file."""
    before = SimpleNamespace(**(_totals(folder.read_config()) | folder.read_run().get(TOTALS, {})))
    if config.trials is not None and before.trials is not None and config.trials < before.trials:
        raise BadInput(f"--trials: read {config.trials}; the sweep has {before.trials}, and can have more")
    if config.population.interval is not None and config.trials != before.trials:
        raise BadInput(f"--trials: read {config.trials}; a population keeps its {before.trials} trials")
    was_repeated = before.repeats * (config.folds or 1) > 1
    if config.repeats < before.repeats or (config.per_set > 1) != was_repeated:
        more = ", and can have more" if was_repeated else "; more of them need a new sweep"
        raise BadInput(f"--repeats: read {config.repeats}; the sweep has {before.repeats}{more}")


def write_changes(folder: RunDirectory, config: SweepConfig) -> None:
    """Write what a sweep that goes on has changed into its file, in which a time budget is that of a whole job."""
    folder.write_run({TOTALS: _totals(config)})
    values = config.model_dump(include={"trials", "repeats", *LIMITS}, exclude_none=True)
    if slurm_job.used_s(folder.path):
        values.pop("time_budget_s", None)
    folder.change_config(values)


def _fields(config: ProblemConfig, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of some fields. names: as pydantic's `include` takes them."""
    fields: dict[str, Any] = json.loads(json.dumps(config.model_dump(mode="json", include=dict(names))))
    if fields["experiment"] is not None:
        fields["experiment"] = fields["experiment"].rpartition("/")[2]  # its folder may have been moved
    return fields


def _require_same(folder: RunDirectory, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise BadInput with a line for each field that differs from the start of a run. A name that is new outside TABLES
    is that of a field which a later version has."""
    earlier, later, kind = dict(_flat(before)), dict(_flat(now)), KINDS[folder.kind]
    faults = [
        f"resume: {folder.config}: {name}: read {_said(later.get(name))}; the {kind} began with"
        f" {_said(earlier.get(name))}; set it back, or begin a new {kind}"
        for name in earlier | {name: None for name in later if name.startswith(TABLES)}
        if json.dumps(earlier.get(name)) != json.dumps(later.get(name))
    ]
    if faults:
        raise BadInput(faults)


def _flat(values: Mapping[str, Any], above: str = "") -> list[tuple[str, Any]]:
    """Return the fields of all sections by their names, as `stopping.patience`."""
    fields = []
    for name, value in values.items():
        is_table = isinstance(value, dict) and (value or f"{above}{name}." in TABLES)
        fields += _flat(value, f"{above}{name}.") if is_table else [(above + name, value)]
    return fields


def _said(value: Any) -> str:
    return "nothing" if value is None else json.dumps(value)
