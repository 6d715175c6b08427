"""Metrics in full precision, of a model that is evaluated in mixed precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from raygpu.experiment import Experiment
from raygpu.training.torch.experiment import overrides

HALF = (torch.bfloat16, torch.float16)


def metrics_of(experiment: Experiment, outputs: Any, targets: Any, device: torch.device) -> dict[str, Any]:
    """Return an experiment's metrics. In the context of mixed precision, leave it for them, and give them outputs of
    half precision as float32: products of outputs would be rounded otherwise."""
    if not torch.is_autocast_enabled(device.type) or not overrides(experiment, "metrics"):
        return experiment.metrics(outputs, targets)
    with torch.autocast(device.type, enabled=False):
        return experiment.metrics(with_each(outputs, _full), targets)


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def with_each(outputs: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return outputs with the function's results in place of their tensors: in dicts, lists, tuples and dataclasses of
    any class."""
    if isinstance(outputs, torch.Tensor):
        return function(outputs)
    if isinstance(outputs, MutableMapping):
        changed: Any = copy.copy(outputs)
        for name, value in outputs.items():
            changed[name] = with_each(value, function)
        return changed
    if hasattr(outputs, "_fields"):  # a named tuple
        return type(outputs)(*(with_each(value, function) for value in outputs))
    if isinstance(outputs, tuple | list):
        return type(outputs)(with_each(value, function) for value in outputs)
    if is_dataclass(outputs) and not isinstance(outputs, type):
        changed = copy.copy(outputs)
        for field in (each for each in fields(outputs) if hasattr(outputs, each.name)):
            object.__setattr__(changed, field.name, with_each(getattr(outputs, field.name), function))
        return changed
    return outputs
