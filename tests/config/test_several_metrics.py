from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.search.scoring import Scoring


def config_of(**values: Any) -> SweepConfig:
    return SweepConfig.model_validate({"experiment": "m:f", "trials": 4, "space": {"x": 1}} | values)


def test_the_first_metric_is_the_score() -> None:
    config = config_of(metrics=["accuracy", "latency_ms"])
    assert (config.metric, config.maximize) == ("accuracy", True)
    assert config.further_metrics == (("latency_ms", False),)
    assert Scoring.of(config).further == (("latency_ms", False),)


def test_directions_and_flags() -> None:
    config = config_of(metrics="width, height,loss", directions="min,max,min")
    assert (config.metric, config.direction) == ("width", "min")
    assert config.further_metrics == (("height", True), ("loss", False))


def test_a_written_configuration_is_read_again() -> None:
    config = config_of(metrics=["accuracy", "speed"], directions=["max", "max"])
    assert SweepConfig.model_validate(config.model_dump(exclude_none=True)) == config
    assert config_of().further_metrics == ()


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"metrics": ["accuracy"]}, "two or more different ones"),
        ({"metrics": ["accuracy", "accuracy"]}, "two or more different ones"),
        ({"metrics": ["accuracy", "loss"], "metric": "loss"}, "the first of metrics is 'accuracy'"),
        ({"metrics": ["accuracy", "loss"], "directions": ["max"]}, "read 1 for 2 metrics"),
        ({"directions": ["max", "min"]}, "is for several metrics"),
        ({"metrics": ["a", "b"], "directions": ["max", "min"], "direction": "min"}, "the first of directions is 'max'"),
    ],
)
def test_what_contradicts_itself_is_refused(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        config_of(**values)
