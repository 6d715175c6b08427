"""raygpu: hyper-parameter searches packed on fractions of a GPU, every trial in MLflow.

`import raygpu` is cheap: it loads neither torch, TensorFlow, Ray nor MLflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raygpu.api import (
        open_run,
        run_balance,
        run_delivery,
        run_pack,
        run_placement,
        run_submission,
        run_sweep,
        run_training,
    )
    from raygpu.engines.cluster.ray_rows import RayRows
    from raygpu.experiment import Mean, Splits, Sum
    from raygpu.reporting import checkpoint, load, report
    from raygpu.search.distributions import choice, grid_search, lograndint, loguniform, quniform, randint, uniform
    from raygpu.search.trials import Trial
    from raygpu.training.data.dataset_splits import dataset_splits
    from raygpu.training.fused.fuse import fuse
    from raygpu.training.keras.experiment import KerasExperiment
    from raygpu.training.keras.multi_gpu import multi_gpu_model
    from raygpu.training.torch.experiment import TorchExperiment

__version__ = "0.1.0"
__all__ = [
    "KerasExperiment",
    "Mean",
    "RayRows",
    "Splits",
    "Sum",
    "TorchExperiment",
    "Trial",
    "checkpoint",
    "choice",
    "dataset_splits",
    "fuse",
    "grid_search",
    "load",
    "lograndint",
    "loguniform",
    "multi_gpu_model",
    "open_run",
    "quniform",
    "randint",
    "report",
    "run_balance",
    "run_delivery",
    "run_pack",
    "run_placement",
    "run_submission",
    "run_sweep",
    "run_training",
    "uniform",
]
_HOMES = dict.fromkeys(("Mean", "Splits", "Sum"), "experiment")
_HOMES |= dict.fromkeys(("checkpoint", "load", "report"), "reporting") | {"Trial": "search.trials"}
_HOMES |= dict.fromkeys(
    (
        "open_run",
        "run_balance",
        "run_delivery",
        "run_pack",
        "run_placement",
        "run_submission",
        "run_sweep",
        "run_training",
    ),
    "api",
)
_HOMES |= dict.fromkeys(
    ("choice", "grid_search", "lograndint", "loguniform", "quniform", "randint", "uniform"), "search.distributions"
)
_HOMES |= {"TorchExperiment": "training.torch.experiment", "KerasExperiment": "training.keras.experiment"}
_HOMES |= {"dataset_splits": "training.data.dataset_splits", "fuse": "training.fused.fuse"}
_HOMES |= {"multi_gpu_model": "training.keras.multi_gpu", "RayRows": "engines.cluster.ray_rows"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'raygpu' has no attribute {name!r}")
    return getattr(importlib.import_module(f"raygpu.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
