"""What a sweep's population and a training's changes may be: one line for each fault."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import SweepConfig, TrainConfig, validated
from raygpu.config.population_section import PopulationSection
from raygpu.errors import BadInput

SWEEP: dict[str, Any] = {
    "experiment": "experiments.digits:Mlp",
    "trials": 8,
    "epochs": 10,
    "population": {"interval": 2},
}
TRAIN: dict[str, Any] = {"experiment": "experiments.digits:Mlp", "epochs": 10}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"population": {"quantile": 0.1}}, "population: interval is not given"),
        (
            {"population": {"interval": 10}},
            "population.interval: read 10, and burn_in 0: no comparison",
        ),
        ({"population": {"interval": 2, "burn_in": 10}}, "no comparison before the last epoch, epochs = 10"),
        ({"epochs": None}, "no comparison before the last epoch, epochs = None"),
        ({"stopping": {"algorithm": "halving"}}, "stopping: read 'halving' beside a population"),
        ({"search": {"algorithm": "tpe"}}, "search.algorithm: read 'tpe', which waits for scores"),
        ({"experiment": None, "command": "python train.py"}, "a script keeps its parameters to itself"),
        ({"population": {"interval": 2, "change": ["batch_size"]}}, "'batch_size' cannot change while a trial trains"),
        ({"population": {"interval": 2, "quantile": 0.6}}, "population.quantile: read 0.6"),
        ({"population": {"interval": 0}}, "population.interval: read 0"),
    ],
)
def test_faults_of_a_population(values: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput) as fault:
        validated(SWEEP | values, SweepConfig, "a.toml")
    assert len(fault.value.faults) == 1
    assert line in fault.value.faults[0]
    assert "\n" not in fault.value.faults[0]


def test_names_come_as_a_list_or_by_commas() -> None:
    for given in (["lr", "momentum"], "lr, momentum"):
        section = PopulationSection(interval=2, change=given)  # type: ignore[arg-type]
        assert section.chosen == ("lr", "momentum")
    assert PopulationSection().chosen is None


def test_a_written_configuration_can_be_read_again() -> None:
    for values in (SWEEP, SWEEP | {"population": {}}, SWEEP | {"population": {"interval": 2, "change": ["lr"]}}):
        config = validated(values, SweepConfig, "a.toml")
        assert validated(config.model_dump(exclude_none=True), SweepConfig, "b.toml") == config


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ([{"epoch": 1, "lr": 0.1}], "epoch: read 1; a whole number above 1 is wanted, in rising order"),
        ([{"epoch": 3, "lr": 0.1}, {"epoch": 3, "lr": 0.2}], "epoch: read 3; a whole number above 3"),
        ([{"lr": 0.1}], "epoch: read None"),
        ([{"epoch": 2, "batch_size": 64}], "batch_size cannot change in a training; allowed: lr, momentum"),
    ],
)
def test_faults_of_changes(changes: list[dict[str, Any]], line: str) -> None:
    with pytest.raises(BadInput) as fault:
        validated(TRAIN | {"changes": changes}, TrainConfig, "best.toml")
    assert len(fault.value.faults) == 1
    assert line in fault.value.faults[0]
