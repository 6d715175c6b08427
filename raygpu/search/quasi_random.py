"""Trials of a quasi-random search: points of a scrambled Sobol sequence, which cover the space more evenly than random
ones (Bergstra and Bengio, JMLR 2012, section 4; Owen, 1998, for the scrambling)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from raygpu.search.space import Parameter, Space, quantized, stepped, trial_seed
from raygpu.search.trials import Trial


def quasi_random_trials(space: Space, count: int, seed: int, starts: Sequence[Mapping[str, Any]] = ()) -> list[Trial]:
    """Draw trials evenly: the same for the same seed, and the first ones of any larger count.

    starts: values of the first trials; what one leaves open comes from the sequence. Each parameter but the constants
    has a dimension of its own, a conditional one too. A number of trials that is a power of two is the most even.
    """
    trials = []
    dimensions = [parameter.name for parameter in space.parameters if parameter.kind != "constant"]
    for index, point in zip(range(count), _sobol(max(1, len(dimensions)), count, seed), strict=False):
        start = starts[index] if index < len(starts) else {}
        places = dict(zip(dimensions, map(float, point), strict=False))
        values: dict[str, Any] = {}
        for parameter in space.parameters:
            if parameter.active(values):
                name = parameter.name
                values[name] = start[name] if name in start else at(parameter, places.get(name, 0.0))
        trials.append(Trial(Trial.name(index), trial_seed(seed, index), values))
    return trials


def _sobol(num_dimensions: int, count: int, seed: int) -> Iterator[np.ndarray]:
    from scipy.stats import qmc

    sequence = qmc.Sobol(num_dimensions, scramble=True, rng=np.random.default_rng(seed))
    return iter(sequence.random_base2(max(0, math.ceil(math.log2(max(1, count))))))


def at(parameter: Parameter, place: float) -> Any:
    """Return the value of a parameter below which this share of its distribution lies. place: from 0 to below 1."""
    a = parameter.arguments
    match parameter.kind:
        case "constant":
            return a[0]
        case "choice":
            return a[int(place * len(a))]
        case "uniform":
            return a[0] + place * (a[1] - a[0])
        case "quniform":
            return stepped(a[0] + place * (a[1] - a[0]), *a)
        case "loguniform":
            return _log(place, a)
        case "qloguniform":
            return stepped(_log(place, a), *a)
        case "randint":
            return int(a[0] + math.floor(place * (a[1] - a[0])))
        case "qrandint":
            return int(a[0] + a[2] * math.floor(place * ((a[1] - a[0]) // a[2] + 1)))
        case "lograndint":
            return min(int(_log(place, a)), a[1] - 1)
        case "qlograndint":
            return int(stepped(_log(place, a), *a))
        case "randn":
            return _normal(place, a)
        case "qrandn":
            return quantized(_normal(place, a), a[2])
    raise AssertionError(parameter.kind)


def _log(place: float, a: Sequence[float]) -> float:
    low, high = math.log(a[0]), math.log(a[1])
    return min(max(math.exp(low + place * (high - low)), a[0]), a[1])


def _normal(place: float, a: Sequence[float]) -> float:
    from scipy.stats import norm

    return float(norm.ppf(min(max(place, 1e-12), 1 - 1e-12), a[0], a[1]))
