"""Distributions of hyper-parameters for a space in Python: each returns what a configuration file has.

    space = {"lr": loguniform(1e-3, 1), "layers": choice(1, 2), "width": choice(32, 64, when={"layers": 2})}

Their names and meanings are those of Ray Tune.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Distribution = dict[str, Any]
"""A distribution by its name, with its arguments, and the values of other hyper-parameters for which it exists."""


def uniform(low: float, high: float, *, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw a float between low and high."""
    return _made("uniform", [low, high], when)


def loguniform(low: float, high: float, *, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw a float between low and high, uniform in its logarithm."""
    return _made("loguniform", [low, high], when)


def quniform(low: float, high: float, step: float, *, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw a multiple of the step between low and high."""
    return _made("quniform", [low, high, step], when)


def randint(low: int, high: int, *, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw a whole number from low on, below high."""
    return _made("randint", [low, high], when)


def lograndint(low: int, high: int, *, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw a whole number from low on, below high, uniform in its logarithm."""
    return _made("lograndint", [low, high], when)


def choice(*options: Any, when: Mapping[str, Any] | None = None) -> Distribution:
    """Draw one of these values."""
    return _made("choice", list(options), when)


def grid_search(*options: Any, when: Mapping[str, Any] | None = None) -> Distribution:
    """Try each of these values; for a grid."""
    return _made("grid_search", list(options), when)


def _made(name: str, arguments: list[Any], when: Mapping[str, Any] | None) -> Distribution:
    return {name: arguments} | ({"when": dict(when)} if when is not None else {})
