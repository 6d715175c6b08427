from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.search.quasi_random import at, quasi_random_trials
from raygpu.search.space import parse, random_trials

SPACE = {
    "lr": {"loguniform": [1e-3, 1.0]},
    "kind": {"choice": ["a", "b", "c"]},
    "n": {"randint": [1, 5]},
    "width": {"choice": [8, 16], "when": {"kind": "b"}},
    "batch_size": 32,
}
KINDS: list[tuple[dict[str, Any], float, float]] = [
    ({"uniform": [-1, 2]}, -1, 2),
    ({"quniform": [0.05, 0.97, 0.1]}, 0.1, 0.9),
    ({"loguniform": [1e-4, 1]}, 1e-4, 1),
    ({"qloguniform": [1, 64, 4]}, 4, 64),
    ({"randint": [2, 6]}, 2, 5),
    ({"qrandint": [8, 64, 8]}, 8, 64),
    ({"lograndint": [1, 100]}, 1, 99),
    ({"qlograndint": [1, 99, 4]}, 4, 96),
    ({"choice": [3, 5]}, 3, 5),
]


def test_the_first_trials_are_those_of_a_larger_number() -> None:
    space = parse(SPACE, "qmc")
    assert quasi_random_trials(space, 5, 1) == quasi_random_trials(space, 37, 1)[:5]
    assert quasi_random_trials(space, 5, 1) != quasi_random_trials(space, 5, 2)


def test_conditions_hold() -> None:
    for trial in quasi_random_trials(parse(SPACE, "qmc"), 32, 0):
        assert ("width" in trial.hyperparameters) == (trial.hyperparameters["kind"] == "b")
        assert trial.hyperparameters["batch_size"] == 32


def test_starts_come_first_and_are_completed() -> None:
    space = parse(SPACE, "qmc")
    plain = quasi_random_trials(space, 4, 0)
    started = quasi_random_trials(space, 4, 0, [{"lr": 0.5}])
    assert started[0].hyperparameters["lr"] == 0.5
    assert started[0].hyperparameters["n"] == plain[0].hyperparameters["n"]
    assert started[1:] == plain[1:]


@pytest.mark.parametrize("seed", range(5))
def test_it_is_more_even_than_chance(seed: int) -> None:
    """Each of 64 equal parts of a range has one of 64 points."""
    space = parse({"x": {"uniform": [0, 64]}, "y": {"uniform": [0, 64]}}, "qmc")
    even, drawn = quasi_random_trials(space, 64, seed), random_trials(space, 64, seed)
    for name in ("x", "y"):
        assert len({int(trial.hyperparameters[name]) for trial in even}) == 64
        assert len({int(trial.hyperparameters[name]) for trial in drawn}) < 60


@pytest.mark.parametrize(("kind", "low", "high"), KINDS)
def test_every_kind_covers_its_range(kind: dict[str, Any], low: float, high: float) -> None:
    (parameter,) = parse({"x": kind}, "qmc").parameters
    values = [at(parameter, place) for place in np.linspace(0, 1, 1000, endpoint=False)]
    assert min(values) == pytest.approx(low)
    assert max(values) == pytest.approx(high, rel=0.01)
    assert values == sorted(values)
    if "int" in next(iter(kind)):
        assert all(isinstance(value, int) for value in values)


@given(st.floats(0, 1, exclude_max=True))
def test_a_normal_distribution_has_its_quantiles(place: float) -> None:
    (parameter,) = parse({"x": {"randn": [3.0, 2.0]}}, "qmc").parameters
    assert np.isfinite(at(parameter, place))
    assert (at(parameter, place) < 3.0) == (place < 0.5)
