"""A finished training's model in MLflow, and in its registry behind two gates.

The model has to beat the trial's score, and no registered model on the same validation data may be better by the same
metric.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.config import TrainConfig
from raygpu.config.source import Source
from raygpu.errors import TrackingError, one_line
from raygpu.experiment import Arrays
from raygpu.records import scratch
from raygpu.records.best_trial import unlike_trial
from raygpu.search.trials import Trial

if TYPE_CHECKING:
    from raygpu.tracking.runs import RunTree
    from raygpu.tracking.session import Session
    from raygpu.training.base import Exported

NUM_SAMPLES = 4
"""Samples in the example of the model's input."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained model."""

    source: Source
    code: Any
    """The experiment."""
    trial: Trial
    checkpoint: Path
    score: float
    few: Arrays
    """Inputs of NUM_SAMPLES validation samples."""
    validation: str
    """Fingerprint of the validation data behind the score."""


def keep(config: TrainConfig, session: Session, model: Candidate, say: Callable[[str], None]) -> dict[str, Any]:
    """Log the model to MLflow and register it if it qualifies; return the `model` of `summary.json`.

    The result has its place in MLflow, and its version in the registry or the reason for none. Empty if MLflow is off
    or out of reach, or the model cannot be exported: its checkpoint is kept all the same.
    """
    try:
        tree = session.tree()
    except TrackingError as error:
        session.lacks_model = str(error)
        return {}
    if tree is None and session.spools:
        session.lacks_model = "all that is for MLflow waits to be delivered"
        return {}
    if tree is None:
        if config.registered_name is not None:
            say("not registered: MLflow is off")
        return {}
    with tempfile.TemporaryDirectory(dir=scratch.home()) as folder:
        try:
            exported_model = _exported(model, Path(folder))
        except Exception as error:  # noqa: BLE001 - the user's model: whatever it raises is the message
            say(f"the model is not in MLflow, for it cannot be exported: {one_line(error)}")
            return {}
        try:
            return _in_mlflow(config, session, tree, model, exported_model, say)
        except TrackingError as error:
            session.lacks_model = str(error)
            return {}


def _exported(model: Candidate, folder: Path) -> Exported:
    if model.source.kind == "torch":
        from raygpu.training.torch.export import export
    else:
        from raygpu.training.keras.export import export
    return export(model.code, model.trial, model.checkpoint, model.few, folder)


def _in_mlflow(
    config: TrainConfig, session: Session, tree: RunTree, model: Candidate, made: Exported, say: Callable[[str], None]
) -> dict[str, Any]:
    from raygpu.tracking import models, registry

    run_id, framework = str(session.run_id), model.source.kind
    uri = models.log(tree, run_id, framework, made.model, made.program, model.few, made.outputs)
    if config.registered_name is None:
        return {"uri": uri}
    if (refusal := _refusal(config, model.score)) is not None:
        say(f"not registered: {refusal}")
        return {"uri": uri, "refused": refusal}
    if (difference := unlike_trial(config)) is not None:
        say(f"not compared with the trial, {difference}")
    claim = registry.Claim(model.score, config.metric, config.maximize, model.validation)
    tags = session.tags() | {"raygpu.data": "real"}
    try:
        verdict = registry.register(tree, uri, config.registered_name, claim, tags)
    except TrackingError as error:
        say(f"not registered: {error}")
        return {"uri": uri, "refused": str(error)}
    if verdict.registered is None:
        say(f"not registered: {verdict.line}")
        return {"uri": uri, "refused": verdict.line}
    say(verdict.line)
    return {"uri": uri, "registered": verdict.registered.uri, "alias": verdict.alias}


def _refusal(config: TrainConfig, score: float) -> str | None:
    """Return why a model with this score stays out of the registry, whatever is there; None if it may go there."""
    if config.data.synthetic:
        return "it was trained on synthetic data"
    if not math.isfinite(score):
        return f"its {config.metric} is {score}"
    trial = None if unlike_trial(config) is not None else config.source.get("score")
    if trial is None or (score > trial if config.maximize else score < trial):
        return None
    return f"{config.metric} {score:.6g} does not beat the trial's {trial:.6g}"
