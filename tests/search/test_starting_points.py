from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.search.samplers import sampler
from raygpu.search.space import parse, quantized, random_trials
from raygpu.search.starting_points import fitting, starting_points, value_in

SPACE = parse(
    {
        "lr": {"loguniform": [1e-3, 1.0]},
        "layers": {"choice": [1, 2]},
        "width2": {"choice": [32, 64], "when": {"layers": 2}},
        "units": {"qrandint": [8, 64, 8]},
        "keep": {"quniform": [0.0, 1.0, 0.1]},
        "n": {"randint": [1, 5]},
        "flag": {"choice": [True, False]},
        "batch_size": 32,
    }
)


def test_complete_and_partial_sets() -> None:
    tables = [{"lr": 1, "layers": 2, "width2": 64}, {"units": 16}, {"units": 16}]
    assert starting_points(SPACE, tables, 8) == [{"lr": 1.0, "layers": 2, "width2": 64}, {"units": 16}]


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        ({"lr": 5.0}, "start 1: lr: read 5.0; [space] has 0.001 to 1.0"),
        ({"lr": "fast"}, "start 1: lr: read 'fast'; a finite number is wanted"),
        ({"layers": 3}, "start 1: layers: read 3; [space] has 1, 2"),
        ({"n": 5}, "start 1: n: read 5; [space] has 1 to 4"),
        ({"n": 1.5}, "start 1: n: read 1.5; a whole number is wanted"),
        ({"units": 12}, "start 1: units: read 12; [space] has multiples of 8"),
        ({"keep": 0.25}, "start 1: keep: read 0.25; [space] has multiples of 0.1"),
        ({"flag": 1}, "start 1: flag: read 1; [space] has True, False"),
        ({"batch_size": 64}, "start 1: batch_size: read 64; [space] has 32"),
        ({"lrr": 0.1}, "start 1: no hyper-parameter 'lrr' in [space] (did you mean 'lr'?)"),
        ({"width2": 32}, "start 1: width2: exists with layers = 2 alone; give that, too, or leave width2 out"),
        (
            {"width2": 32, "layers": 1},
            "start 1: width2: exists with layers = 2 alone; give that, too, or leave width2 out",
        ),
    ],
)
def test_a_value_outside_the_space_is_refused_in_a_line(table: dict[str, Any], fault: str) -> None:
    with pytest.raises(BadInput) as refused:
        starting_points(SPACE, [table], 8)
    assert list(refused.value.faults) == [fault]


STEPS: list[tuple[str, list[float], float, float | None]] = [
    ("quniform", [0.05, 1.0, 0.1], 0.15, None),
    ("quniform", [0.05, 1.0, 0.1], 0.05, None),
    ("quniform", [0.05, 1.0, 0.1], 0.1 + 0.2, 0.3),
    ("quniform", [0.1, 0.93, 0.1], 0.93, None),
    ("quniform", [0, 3.807, 0.009], 3.807, quantized(3.807, 0.009)),
    ("quniform", [0.1, 0.1 + 0.2, 0.1], 0.1 + 0.2, 0.3),
    ("qloguniform", [5, 1000, 10], 15, None),
    ("qlograndint", [5, 1000, 10], 15, None),
    ("qlograndint", [5, 1000, 10], 20, 20),
    ("qrandint", [1, 20, 5], 10, 10),
]


@pytest.mark.parametrize("algorithm", ["random", "qmc", "tpe", "nsgaii"])
@pytest.mark.parametrize(("kind", "arguments", "value", "tried"), STEPS)
def test_every_algorithm_tries_a_value_on_the_steps_and_none_another(
    algorithm: str, kind: str, arguments: list[float], value: float, tried: float | None
) -> None:
    """Steps begin at 0, and an end of the range that is none of them is no value, either."""
    values = {"experiment": "a:b", "trials": 2, "metric": "loss", "start": [{"x": value}]}
    space = {"x": {kind: arguments}, "y": {"uniform": [0, 1]}}
    config = SweepConfig.model_validate(values | {"space": space, "search": {"algorithm": algorithm, "generation": 2}})
    if tried is None:
        with pytest.raises(BadInput, match=rf"x: read {value}; \[space\] has (multiples of {arguments[2]}|0.1 to )"):
            sampler(config, parse(space, algorithm))
        return
    first = sampler(config, parse(space, algorithm)).next()
    assert first is not None
    assert first.hyperparameters["x"] == tried


@pytest.mark.parametrize("algorithm", ["random", "tpe"])
@pytest.mark.parametrize("kind", ["quniform", "qloguniform"])
def test_steps_of_whole_numbers_give_whole_numbers_as_they_draw(algorithm: str, kind: str) -> None:
    space = {"x": {kind: [16, 64, 16]}}
    values = {"experiment": "a:b", "trials": 2, "metric": "loss", "start": [{"x": 32}], "space": space}
    config = SweepConfig.model_validate(values | {"search": {"algorithm": algorithm}})
    search = sampler(config, parse(space, algorithm))
    for _ in range(2):
        trial = search.next()
        assert trial is not None
        assert isinstance(trial.hyperparameters["x"], int)


@pytest.mark.parametrize("options", [[1, True], [1, 1.0], [1.0, 1], [0, False]])
@pytest.mark.parametrize("algorithm", ["random", "tpe"])
def test_of_equal_options_the_one_of_the_values_own_type_is_tried(algorithm: str, options: list[Any]) -> None:
    space = {"x": {"choice": options}, "y": {"uniform": [0, 1]}}
    values = {"experiment": "a:b", "trials": 2, "metric": "loss", "start": [{"x": options[1]}], "space": space}
    config = SweepConfig.model_validate(values | {"search": {"algorithm": algorithm}})
    first = sampler(config, parse(space, algorithm)).next()
    assert first is not None
    assert repr(first.hyperparameters["x"]) == repr(options[1])


def test_more_sets_than_trials_are_refused() -> None:
    with pytest.raises(BadInput, match="start: read 2 sets; trials = 1"):
        starting_points(SPACE, [{"n": 1}, {"n": 2}], 1)


@given(st.integers(0, 1000))
def test_every_draw_of_the_space_is_a_starting_point(seed: int) -> None:
    """Also as a run's file has it, where true is text."""
    (trial,) = random_trials(SPACE, 1, seed)
    values = dict(trial.hyperparameters)
    assert starting_points(SPACE, [values], 1) == [values]
    assert fitting(SPACE, values | {"flag": str(values["flag"])}) == values


def test_sets_of_another_search() -> None:
    assert fitting(SPACE, {"lr": 0.1, "dropout": 0.5}) == {"lr": 0.1}
    assert fitting(SPACE, {"lr": 10.0}) is None
    assert fitting(SPACE, {"dropout": 0.5, "batch_size": 32}) is None


def test_whole_numbers_for_floats_become_floats() -> None:
    assert isinstance(value_in({each.name: each for each in SPACE.parameters}["lr"], 1), float)
