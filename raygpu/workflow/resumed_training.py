"""Refuse to go on with a training by another experiment, metric, seed, data or batch than it began with: its scores
would not compare."""

from __future__ import annotations

from typing import Any

from raygpu.config import TrainConfig, load
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.fixed_fields import BEGUN, changed_lines, fixed_fields

ACCUMULATE = "accumulate"
"""Field that may change where the run's state has the global batch, which a resume then takes: it sets the size of the
parts alone."""
FIXED = dict.fromkeys(("experiment", "data", "seed", "metric", "direction", "global_batch", ACCUMULATE), True)
"""Fields that stay as they were at a training's start, beside the hyper-parameter `batch_size`."""
BATCH_SIZE = "batch_size"
"""Hyper-parameter that sets the batch and, where the learning rate is scaled, that too."""


def begun_training(folder: RunDirectory) -> dict[str, Any]:
    """Return what a resumed training is compared with, for the state of a run whose configuration is written."""
    return {BEGUN: _fixed(load(folder.config, {}, TrainConfig))}


def require_same_training(folder: RunDirectory, config: TrainConfig) -> None:
    """Raise BadInput with a line for each field that has changed and cannot; earlier versions have noted none."""
    state = folder.read_run()
    if (begun := state.get(BEGUN)) is None:
        return
    now = _fixed(config)
    if state.get("global_batch") is not None:
        begun, now = ({name: fields[name] for name in fields if name != ACCUMULATE} for fields in (begun, now))
    if faults := changed_lines(folder, begun, now):
        raise BadInput(faults)


def _fixed(config: TrainConfig) -> dict[str, Any]:
    batch = {BATCH_SIZE: config.hyperparameters.get(BATCH_SIZE)}
    return fixed_fields(config, FIXED) | {"hyperparameters": batch}
