"""The kinds of values that an experiment's `loss` and `metrics` return: a mean over samples, a `Mean` or a `Sum`."""

from __future__ import annotations

from typing import Any, Literal

from raygpu.experiment import Mean, Sum

LossKind = Literal["scalar", "mean", "sum"]
IN_WORDS: dict[LossKind, str] = {"scalar": "a plain number", "mean": "a Mean", "sum": "a Sum"}
"""Name of each kind in messages."""
ONE_OUTPUT = "one output: the cross entropy of a single class is 0; override loss()"
"""Fault of a model with one output for each sample beside the default loss."""


def loss_kind(value: Any) -> LossKind:
    """Return the kind of a result of `loss` or `metrics`."""
    return "mean" if isinstance(value, Mean) else "sum" if isinstance(value, Sum) else "scalar"
