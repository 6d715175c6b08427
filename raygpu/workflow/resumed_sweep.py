"""Refuse to go on with a sweep in another way than it began: by another version's state, or with other values of the
fields that say which trials there are, how they are trained and how they are compared."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.experiment import Splits, num_samples
from raygpu.records import slurm_job
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.fixed_fields import BEGUN, changed_lines, fixed_fields
from raygpu.workflow.registration import fingerprint

STATE = 3
"""Version of the state that a sweep keeps for `--resume`; another one cannot be read."""
VERSION, SETS = "state", "begun_sets"
"""Keys, in the run's state, of this version, and of the number of sets at the start."""
VALIDATION = "validation_data"
"""Key of the validation data with which a sweep began."""
OTHER_DATA = (
    "the validation data are not those with which this sweep began: scores of earlier trials do not compare with those"
    " of the trials to come; a new sweep compares all"
)
FIXED: Mapping[str, Any] = {
    **dict.fromkeys(("experiment", "command", "data", "folds", "seed", "epochs"), True),
    **dict.fromkeys(("metric", "direction", "metrics", "directions", "score"), True),
    **dict.fromkeys(("start", "search", "stopping", "population", "space"), True),
    "script": {"metrics"},
}
"""Fields that stay as they were at a sweep's start. Those of `[gpu]` do, whatever the file says (`read_config`)."""
TABLES = ("space.", "script.metrics.")
"""Beginnings of the names that a user chooses: a new one is a change."""
LIMITS = ("trial_timeout_s", "silence_timeout_s", "time_budget_s")
"""Limits of time, which a resumed sweep may change."""
LEAST_S = 1.0
"""Time budget of a start that finds it used up: it writes the results, and trains no more."""
STATE_FILES = "experiment_state-*.json"


def begun_state(folder: RunDirectory) -> dict[str, Any]:
    """Return what a resumed sweep is compared with, for the state of a run whose configuration is written."""
    config = folder.read_config()
    return {VERSION: STATE, BEGUN: fixed_fields(config, FIXED), SETS: config.trials}


def begun_sets(folder: RunDirectory) -> int | None:
    """Return the number of sets with which a sweep began; None of one that has not begun yet."""
    noted = folder.read_run()
    if VERSION not in noted:
        return None
    return noted.get(SETS, folder.read_config().trials)  # earlier commits noted none


def require_same_start(folder: RunDirectory, config: SweepConfig) -> None:
    """Raise BadInput if another version of raygpu began the sweep, or if a field has changed that cannot."""
    noted = folder.read_run()
    if noted.get(VERSION) != STATE:
        if not fnmatch.filter(folder.tune.files(), STATE_FILES):
            return  # it begins now
        raise BadInput(
            f"resume: {folder}: another version of raygpu began it, whose state this one cannot read; go on with that"
            " version, or begin a new sweep; its results are as they were"
        )
    faults = changed_lines(folder, noted[BEGUN], fixed_fields(config, FIXED), TABLES)
    if faults:
        raise BadInput(faults)


def compared_data(folder: RunDirectory, splits: Splits | None) -> list[str]:
    """Note the number and the first of the validation samples of a sweep that begins; return a line if one that goes on
    has others. splits: None of a function, whose data nobody knows."""
    if splits is None:
        return []
    found = f"{num_samples(splits.validation_inputs)} {fingerprint(splits, whole=False)}"
    noted = folder.read_run().setdefault(VALIDATION, found)
    folder.write_run({VALIDATION: noted})
    return [] if noted == found else [OTHER_DATA]


def in_the_time_left(folder: RunDirectory, config: SweepConfig) -> SweepConfig:
    """Return the configuration with what the earlier starts of the Slurm job that goes on have left of the budget."""
    used_s = slurm_job.used_s(folder.path)
    if config.time_budget_s is None or not used_s:
        return config
    return config.model_copy(update={"time_budget_s": max(LEAST_S, config.time_budget_s - used_s)})


def write_changes(folder: RunDirectory, config: SweepConfig) -> None:
    """Write what a sweep that goes on has changed into its file, in which a time budget is that of a whole job."""
    values = config.model_dump(include={"trials", "repeats", *LIMITS}, exclude_none=True)
    if slurm_job.used_s(folder.path):
        values.pop("time_budget_s", None)
    folder.change_config(values)
