"""A finished training's model in MLflow, and in its registry behind a gate: it has to beat the trial's score."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.config import TrainConfig
from raygpu.errors import TrackingError, one_line
from raygpu.experiment import Arrays, Source

if TYPE_CHECKING:
    from raygpu.tracking.runs import RunTree
    from raygpu.tracking.session import Session
    from raygpu.training.base import Exported

NUM_SAMPLES = 4
"""That the example of the model's input has."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained model."""

    source: Source
    code: Any
    """The experiment."""
    checkpoint: Path
    score: float
    few: Arrays
    """NUM_SAMPLES of its inputs."""


def keep(config: TrainConfig, session: Session, model: Candidate, say: Callable[[str], None]) -> dict[str, Any]:
    """The `model` of `summary.json`: where it is in MLflow, and its version in the registry, or why it has none.

    Empty where MLflow is off or out of reach, or the model cannot be exported: its checkpoint is kept all the same.
    """
    tree = session.tree()
    if tree is None:
        if config.registered_name is not None:
            say("not registered: MLflow is off, or out of reach")
        return {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            made = _exported(config, model, Path(folder))
        except Exception as error:  # noqa: BLE001 - the user's model: whatever it raises is the message
            say(f"the model is not in MLflow, for it cannot be exported: {one_line(error)}")
            return {}
        try:
            return _in_mlflow(config, session, tree, model, made, say)
        except TrackingError as error:
            say(str(error))
            return {}


def _exported(config: TrainConfig, model: Candidate, folder: Path) -> Exported:
    if model.source.kind == "torch":
        from raygpu.training.torch_export import export
    else:
        from raygpu.training.keras_export import export
    return export(model.code, config.hyperparameters, model.checkpoint, model.few, folder)


def _in_mlflow(
    config: TrainConfig, session: Session, tree: RunTree, model: Candidate, made: Exported, say: Callable[[str], None]
) -> dict[str, Any]:
    from raygpu.tracking import models

    run_id, framework = str(session.run_id), model.source.kind
    uri = models.log(tree, run_id, framework, made.model, made.program, model.few, made.outputs)
    if config.registered_name is None:
        return {"uri": uri}
    if (refusal := _refusal(config, model.score)) is not None:
        say(f"not registered: {refusal}")
        return {"uri": uri, "refused": refusal}
    tags = session.tags() | {"raygpu.score": model.score, "raygpu.metric": config.metric}
    registered = models.register(tree, uri, config.registered_name, tags)
    say(f"registered: {registered.uri}")
    return {"uri": uri, "registered": registered.uri}


def _refusal(config: TrainConfig, score: float) -> str | None:
    """Why a model with this score stays out of the registry; None where it may go."""
    if config.data.synthetic:
        return "it was trained on synthetic data"
    trial = config.source.get("score")
    if trial is None or (score > trial if config.maximize else score < trial):
        return None
    return f"{config.metric} {score:.6g} does not beat the trial's {trial:.6g}"
