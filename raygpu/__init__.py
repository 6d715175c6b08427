"""raygpu: hyper-parameter searches packed on fractions of a GPU, every trial in MLflow.

`import raygpu` is cheap: it loads neither torch, TensorFlow, Ray nor MLflow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raygpu.experiment import KerasExperiment, Splits, TorchExperiment
    from raygpu.reporting import checkpoint, load, report

__version__ = "0.1.0"
__all__ = ["KerasExperiment", "Splits", "TorchExperiment", "checkpoint", "load", "report"]


def __getattr__(name: str) -> object:
    if name in ("checkpoint", "load", "report"):
        from raygpu import reporting

        return getattr(reporting, name)
    if name in __all__:
        from raygpu import experiment

        return getattr(experiment, name)
    raise AttributeError(f"module 'raygpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
