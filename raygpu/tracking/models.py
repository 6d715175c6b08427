"""Log a finished model to MLflow, with its signature and an example of its input.

The logged model is a program without its source code: it loads where neither raygpu nor the experiment is installed.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.config.sections import URI_VARIABLE
from raygpu.experiment import Arrays
from raygpu.tracking import client
from raygpu.tracking.mlflow_private_api import without_active_experiment
from raygpu.tracking.runs import RunTree
from raygpu.tracking.upload_time import largest, time_for

NAME = "model"
"""Name of the model in its run."""
PACKAGES = {"torch": ("torch", "numpy"), "keras": ("keras", "tensorflow", "numpy")}
"""Packages that a model needs where it is loaded, by framework."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A model in MLflow's registry."""

    name: str
    version: str

    @property
    def uri(self) -> str:
        """Return the model's URI for `mlflow.pyfunc.load_model`."""
        return f"models:/{self.name}/{self.version}"


def log(
    tree: RunTree, run_id: str, framework: str, model: Any, program: Path | None, inputs: Arrays, outputs: np.ndarray
) -> str:
    """Log a model to a run and return the model's URI. Raises TrackingError.

    framework: "torch" or "keras". program: path of the exported model; None for a torch model that MLflow exports
    itself. inputs: a few samples. outputs: the model's outputs for these samples.
    """
    import mlflow
    from mlflow.models import infer_signature

    example = dict(inputs) if isinstance(inputs, Mapping) else np.ascontiguousarray(inputs)
    options: dict[str, Any] = {"name": NAME, "signature": infer_signature(example, outputs), "input_example": example}
    options["pip_requirements"] = _requirements(*PACKAGES[framework])
    try:
        num_bytes = largest(program) if program is not None else _num_bytes(model)
        longer = time_for(num_bytes, served=tree.served)
        # Nested: the user's code may have left a run of its own active.
        with store_of(tree), longer, mlflow.start_run(run_id=run_id, nested=True), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # advice that is not for whoever runs raygpu
            if program is not None:
                code = Path(__file__).with_name(f"exported_{framework}.py")
                info = mlflow.pyfunc.log_model(python_model=str(code), artifacts={"program": str(program)}, **options)
            else:
                with without_lightning():
                    import mlflow.pytorch
                info = mlflow.pytorch.log_model(model, serialization_format="pt2", **options)
    except Exception as error:
        raise client.fault(tree.uri, error) from error
    return str(info.model_uri)


@contextmanager
def store_of(tree: RunTree) -> Iterator[None]:
    """Let MLflow's own functions write to the tree's store, without their warnings and progress bars.

    The active experiment that the user's code has set holds outside alone. At the exit the process has its own store
    again: MLflow keeps it in the environment, where the next run looks. Raises TrackingError while a batch job carries
    the store.
    """
    import mlflow

    tree.in_place.require_free()
    before: Any = os.environ.get(URI_VARIABLE)

    for name in ("mlflow.models.model", "mlflow.utils.environment", "mlflow.tracking._model_registry.fluent"):
        logging.getLogger(name).setLevel(logging.ERROR)
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow.set_tracking_uri(tree.uri)
    try:
        with without_active_experiment():
            yield
    finally:
        mlflow.set_tracking_uri(before)


@contextmanager
def without_lightning() -> Iterator[None]:
    """Import MLflow's module for torch, inside, without Lightning: it would take three seconds, for MLflow's callback
    in a Lightning trainer. Where Lightning is imported already, nothing changes."""
    name = "pytorch_lightning"
    hidden = name not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules[name]


def _num_bytes(model: Any) -> int:
    """Return the size of a torch model's parameters and buffers."""
    return sum(int(tensor.nbytes) for tensors in (model.parameters(), model.buffers()) for tensor in tensors)


def _requirements(*packages: str) -> list[str]:
    """Return pip requirements with the versions installed here."""
    return [f"{package}=={metadata.version(package).partition('+')[0]}" for package in packages]
