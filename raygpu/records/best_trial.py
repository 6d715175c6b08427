"""A sweep's trial as the values of a production training's configuration: the content of `best.toml`."""

from __future__ import annotations

from typing import Any

from raygpu.config import SweepConfig
from raygpu.search.trials import Trial


def training_values(
    config: SweepConfig,
    sweep: str,
    trial: Trial,
    *,
    score: float | None,
    score_epoch: int | None,
    epochs: int | None,
) -> dict[str, Any]:
    """Return the values of a TrainConfig that trains a trial again; without those that are None.

    sweep: name of its run. score_epoch: epoch of the score. epochs: number of epochs to train.
    """
    direction = "max" if config.maximize else "min"
    source: dict[str, Any] = {"sweep": sweep, "trial_id": trial.trial_id}
    if score is not None:
        source |= {"score": score, "epoch": score_epoch, "score_of": f"{config.score} epoch"}
        source |= {"metric": config.metric, "direction": direction}
    if config.data.synthetic:
        source["data"] = "synthetic"
    values = {
        "experiment" if config.experiment else "command": config.experiment or config.command,
        "metric": config.metric,
        "direction": direction,
        "epochs": epochs,
        "seed": trial.seed,
        "hyperparameters": dict(trial.hyperparameters),
        "source": _given(source),
    }
    return _given(values)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """Leave out the values that are None: TOML has no null."""
    return {name: value for name, value in values.items() if value is not None}
