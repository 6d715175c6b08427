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
_EXPORTS = {
    "api": "open_run run_balance run_delivery run_pack run_placement run_submission run_sweep run_training",
    "engines.cluster.ray_rows": "RayRows",
    "experiment": "Mean Splits Sum",
    "reporting": "checkpoint load report",
    "search.distributions": "choice grid_search lograndint loguniform quniform randint uniform",
    "search.trials": "Trial",
    "training.data.dataset_splits": "dataset_splits",
    "training.fused.fuse": "fuse",
    "training.keras.experiment": "KerasExperiment",
    "training.keras.multi_gpu": "multi_gpu_model",
    "training.torch.experiment": "TorchExperiment",
}
_HOMES = {name: module for module, names in _EXPORTS.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'raygpu' has no attribute {name!r}")
    return getattr(importlib.import_module(f"raygpu.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
