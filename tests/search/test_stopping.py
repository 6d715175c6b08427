from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.search.halving import Halving
from raygpu.search.hyperband import Hyperband
from raygpu.search.median import Median
from raygpu.search.patience import WithPatience
from raygpu.search.stopping import decision_epochs, expected_epochs, expected_stops, stopping_rule, too_late


def config_of(epochs: int = 9, **stopping: Any) -> SweepConfig:
    given = {"experiment": "m:f", "trials": 6, "metric": "loss", "epochs": epochs, "space": {"x": 1}}
    return SweepConfig.model_validate(given | {"stopping": stopping})


@pytest.mark.parametrize(("algorithm", "kind"), [("halving", Halving), ("hyperband", Hyperband), ("median", Median)])
def test_each_rule_alone_and_with_patience(algorithm: str, kind: type) -> None:
    assert isinstance(stopping_rule(config_of(algorithm=algorithm)), kind)
    both = stopping_rule(config_of(algorithm=algorithm, patience=2))
    assert isinstance(both, WithPatience)
    assert isinstance(both.rule, kind)
    assert decision_epochs(config_of(algorithm=algorithm, patience=2)) is None


def test_patience_alone() -> None:
    rule = stopping_rule(config_of(patience=2, min_delta=0.1))
    assert isinstance(rule, WithPatience)
    assert rule.rule is None
    assert stopping_rule(config_of()) is None


def test_hyperbands_epochs() -> None:
    """Brackets of 9, 5 and 3 trials in 17: rungs at 1 and 3, at 3, and none."""
    config = config_of(algorithm="hyperband")
    assert decision_epochs(config) == {1, 3}
    parts = [9 / 3, 3 / 2, 1]
    first, second, third = (part / sum(parts) for part in parts)
    halved = 1 + 2 / 3 + 6 / 9
    assert expected_epochs(config) == pytest.approx(first * halved + second * (3 + 6 / 3) + third * 9)
    assert expected_stops(config)[1] == pytest.approx(first * 2 / 3)


def test_a_longest_training_is_needed() -> None:
    with pytest.raises(ValueError, match="stopping by hyperband needs the largest number of epochs"):
        SweepConfig.model_validate(
            {"experiment": "m:f", "trials": 1, "space": {"x": 1}, "stopping": {"algorithm": "hyperband"}}
        )


@pytest.mark.parametrize(
    "stopping", [{"algorithm": "halving"}, {"algorithm": "median", "min_trials": 1}, {"patience": 2}]
)
@pytest.mark.parametrize("grace", range(1, 7))
def test_a_rule_that_is_too_late_stops_no_trial(stopping: dict[str, Any], grace: int) -> None:
    """Half of the trials get worse with each epoch; the last epoch ends them all."""
    for epochs in range(1, 7):
        config = config_of(epochs=epochs, grace_epochs=grace, **stopping)
        rule = stopping_rule(config)
        assert rule is not None
        stopped: set[str] = set()
        for epoch in range(1, epochs):
            for place in range(10):
                score = float(place if place % 2 else -place * epoch)
                stopped |= rule.decide(epoch, [(f"t{place:04d}", score)])
        assert bool(stopped) != bool(too_late(config)), (epochs, too_late(config))
