from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raygpu.errors import BadInput
from raygpu.search.space import KINDS, grid_trials, parse, quantized, random_trials

EVERY_KIND: dict[str, Any] = {
    "a": {"uniform": [0.0, 1.0]},
    "b": {"quniform": [0.0, 1.0, 0.25]},
    "c": {"loguniform": [1e-4, 1e-1]},
    "d": {"qloguniform": [0.1, 10.0, 0.1]},
    "e": {"randn": [0.0, 1.0]},
    "f": {"qrandn": [0.0, 1.0, 0.5]},
    "g": {"randint": [2, 5]},
    "h": {"qrandint": [2, 8, 2]},
    "i": {"lograndint": [1, 100]},
    "j": {"qlograndint": [1, 100, 10]},
    "k": {"choice": ["x", [1, 2], True]},
    "l": 3,
    "m": [0.9, 0.999],
}
RANGES = {
    "a": (0, 1),
    "b": (0, 1),
    "c": (1e-4, 1e-1),
    "d": (0.1, 10),
    "g": (2, 4),
    "h": (2, 8),
    "i": (1, 99),
    "j": (1, 100),
}


def test_every_kind_is_tried() -> None:
    tried = {next(iter(value)) for value in EVERY_KIND.values() if isinstance(value, dict)}
    assert tried | {"grid_search"} == set(KINDS)


@given(st.integers(0, 2**32 - 1), st.integers(0, 10_000))
def test_draws_keep_to_their_bounds_and_steps(seed: int, index: int) -> None:
    values = parse(EVERY_KIND).draw(seed, index)
    for name, (low, high) in RANGES.items():
        assert low <= values[name] <= high, name
    assert values["b"] % 0.25 == 0
    assert values["h"] % 2 == 0
    assert round(values["f"] / 0.5, 9).is_integer()
    assert values["k"] in ("x", [1, 2], True)
    assert (values["l"], values["m"]) == (3, [0.9, 0.999])


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 10_000))
def test_a_drawn_value_comes_back_from_its_text_in_its_own_type(seed: int, index: int) -> None:
    space = parse(EVERY_KIND | {"whole": {"quniform": [0, 10, 2]}, "large": {"loguniform": [1e15, 1e18]}})
    values = space.draw(seed, index)
    back = {parameter.name: parameter.from_text(str(values[parameter.name])) for parameter in space.parameters}
    assert repr(back) == repr(values)


def listed(kind: str, values: Any) -> Any:
    """A parameter with these values."""
    return parse({"x": values if kind == "constant" else {kind: values}}, "grid").parameters[0]


TEXTS = ["1", "0.1", "True", "true", "None", "inf", "nan", "2026-11-23", "...", "relu", "'relu'", "[1]", "1 # one", ""]
SCALARS = st.one_of(
    st.booleans(), st.integers(), st.floats(), st.sampled_from(TEXTS), st.text(), st.dates(), st.datetimes(), st.times()
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


@settings(deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5, unique_by=str))
def test_a_listed_value_comes_back_from_its_text_in_its_own_type(values: list[Any]) -> None:
    for kind in ("choice", "grid_search"):
        parameter = listed(kind, values)
        assert [repr(parameter.from_text(str(value))) for value in values] == [repr(value) for value in values]
    for value in values:
        if not isinstance(value, dict):
            assert repr(listed("constant", value).from_text(str(value))) == repr(value)


@pytest.mark.parametrize(
    ("values", "text", "found"),
    [
        (["1", "2"], "1", "1"),
        ([[0.9, 0.999], [0.5, 0.9]], "(0.5, 0.9)", [0.5, 0.9]),
        ([[[1]], [[2]]], "((2,),)", [[2]]),
        (["a(", "a["], "a[", "a["),
        ([1, 2], "3", 3),
        (["relu"], "gelu", "gelu"),
    ],
)
def test_a_value_of_python_comes_back_as_the_file_has_it(values: list[Any], text: str, found: Any) -> None:
    assert listed("choice", values).from_text(text) == found
    assert type(listed("choice", values).from_text(text)) is type(found)


def test_texts_give_the_hyper_parameters_that_a_trial_has() -> None:
    """A trial without `width` has an empty cell for it, as one with the empty text for `act`."""
    table = {"act": {"choice": ["", "tanh"]}, "width": {"choice": [8, 16], "when": {"act": ""}}, "lr": 0.5}
    space = parse(table)
    for values in ({"act": "", "width": 16, "lr": 0.5}, {"act": "tanh", "lr": 0.5}):
        texts = {"act": "", "width": "", **{name: str(value) for name, value in values.items()}}
        assert space.from_texts(texts.get) == values
    assert space.from_texts({"act": "tanh", "lr": ""}.get) == {"act": "tanh"}


def test_a_text_that_was_cut_is_that_of_the_whole_value() -> None:
    values = ["a" * 20 + "b", "a" * 20 + "c", "b" * 20]
    assert listed("choice", values).from_text("b" * 9, lambda value: str(value)[:9]) == values[2]
    with pytest.raises(BadInput, match="are both kept as 'aaaaaaaaa'"):
        listed("choice", values).from_text("a" * 9, lambda value: str(value)[:9])


def test_a_text_that_two_listed_values_have_is_not_guessed() -> None:
    with pytest.raises(
        BadInput, match=r"space.x: '1' and 1 are both kept as '1', which tells one from the other no more"
    ):
        listed("choice", ["1", 1]).from_text("1")


def test_the_same_seed_gives_the_same_trials_and_more_trials_change_none() -> None:
    space = parse(EVERY_KIND)
    assert random_trials(space, 8, seed=1) == random_trials(space, 32, seed=1)[:8]
    assert random_trials(space, 8, seed=1) != random_trials(space, 8, seed=2)


def test_another_parameter_changes_no_other() -> None:
    space, wider = parse({"lr": {"uniform": [0, 1]}}), parse({"a": {"uniform": [0, 1]}, "lr": {"uniform": [0, 1]}})
    assert [space.draw(0, i)["lr"] for i in range(5)] == [wider.draw(0, i)["lr"] for i in range(5)]


def test_trials_have_seeds_of_their_own() -> None:
    seeds = {trial.seed for trial in random_trials(parse({"lr": 0.1}), 1000, seed=0)}
    assert len(seeds) == 1000
    assert max(seeds) < 2**31


CONDITIONAL = {
    "layers": {"choice": [1, 2, 3]},
    "width2": {"choice": [32, 64], "when": {"layers": [2, 3]}},
    "width3": {"choice": [8, 16], "when": {"layers": 3, "width2": [32, 64]}},
}


def test_a_conditional_parameter_exists_beside_its_parents_values_alone() -> None:
    seen = set()
    for trial in random_trials(parse(CONDITIONAL), 60, seed=0):
        hp = trial.hyperparameters
        assert ("width2" in hp) == (hp["layers"] >= 2)
        assert ("width3" in hp) == (hp["layers"] == 3)
        seen.add(hp["layers"])
    assert seen == {1, 2, 3}


def test_a_conditional_grid_multiplies_only_what_exists() -> None:
    points = [trial.hyperparameters for trial in grid_trials(parse(CONDITIONAL, "grid"), None, seed=0)]
    assert len(points) == 1 + 2 + 4
    assert points[0] == {"layers": 1}
    assert len({tuple(sorted(point.items())) for point in points}) == 7


def test_parents_may_stand_below_their_children() -> None:
    upside_down = dict(reversed(CONDITIONAL.items()))
    assert {len(t.hyperparameters) for t in random_trials(parse(upside_down), 60, seed=0)} == {1, 2, 3}


def test_steps_are_multiples_as_ray_tunes_are() -> None:
    space = parse({"n": {"qrandint": [3, 20, 5]}, "tiny": {"quniform": [1e-13, 1e-12, 1e-13]}})
    drawn = random_trials(space, 60, seed=0)
    assert {trial.hyperparameters["n"] for trial in drawn} == {5, 10, 15, 20}
    assert len({trial.hyperparameters["tiny"] for trial in drawn}) > 5


@pytest.mark.parametrize(
    ("kind", "low", "high", "step", "first", "last"),
    [
        ("quniform", 0.3, 3.2, 1.0, 1.0, 3.0),
        ("quniform", -0.25, 0.25, 0.1, -0.2, 0.2),
        ("quniform", 0.1, 0.7, 0.1, 0.1, 0.7),
        ("quniform", 0.1 * 3, 1.1 * 3, 0.3, 0.3, 3.3),
        ("quniform", 0.9, 1.1, 0.5, 1.0, 1.0),
        ("quniform", 1000.0005, 1000.0095, 0.001, 1000.001, 1000.009),
        ("qloguniform", 1e-4, 1e-1, 5e-4, 5e-4, 1e-1),
        ("qloguniform", 1e-7, 3.5e-6, 1e-6, 1e-6, 3e-6),
        ("qloguniform", 1e-12, 1e-2, 1e-3, 1e-3, 1e-2),
        ("qlograndint", 1, 1000, 8, 8, 1000),
        ("qrandint", 3, 2**61 + 1, 2**60, 2**60, 2**61),
    ],
)
def test_no_q_distribution_draws_a_bound_that_is_no_multiple(
    kind: str, low: float, high: float, step: float, first: float, last: float
) -> None:
    space = parse({"x": {kind: [low, high, step]}})
    (parameter,) = space.parameters
    assert parameter.arguments == (first, last, step), "bounds that are multiples stay, whatever rounding made of them"
    drawn = [trial.hyperparameters["x"] for trial in random_trials(space, 200, seed=0)]
    assert {quantized(value, step) for value in drawn} == set(drawn)
    assert first <= min(drawn) <= max(drawn) <= last


def test_a_grid_runs_whole_or_as_a_seeded_sample() -> None:
    space = parse({"a": {"grid_search": [1, 2, 3]}, "b": {"randint": [0, 4]}, "c": {"qrandint": [0, 4, 2]}}, "grid")
    assert len(grid_trials(space, None, 0)) == 36
    sample = grid_trials(space, 5, seed=1)
    assert len({str(trial.hyperparameters) for trial in sample}) == 5
    assert sample == grid_trials(space, 5, seed=1)
    assert len(grid_trials(space, 99, 0)) == 36


@pytest.mark.parametrize(
    ("table", "algorithm", "message"),
    [
        ({}, "random", "space: empty"),
        ({"lr": {"loguniform": [0, 1]}}, "random", "space.lr: loguniform: low 0 is not above 0"),
        ({"lr": {"loguniform": [-1.0, 1.0]}}, "random", "low -1.0 is not above 0"),
        ({"lr": {"uniform": [1, 0]}}, "random", "low 1 is not below high 0"),
        ({"lr": {"uniform": [0]}}, "random", "read [0]; [low, high] is wanted"),
        ({"lr": {"uniform": ["a", 1]}}, "random", "2 finite numbers"),
        ({"lr": {"uniform": [0, float("inf")]}}, "random", "2 finite numbers"),
        ({"lr": {"uniform": 3}}, "random", "read 3; a list is wanted"),
        ({"lr": {"quniform": [0, 1, 0]}}, "random", "step 0 is not above 0"),
        ({"lr": {"randint": [0.5, 2]}}, "random", "whole numbers"),
        ({"lr": {"randn": [0, -1]}}, "random", "deviation -1 is not above 0"),
        ({"lr": {"choice": []}}, "random", "the list is empty"),
        ({"lr": {"unifrom": [0, 1]}}, "random", "read 'unifrom' (did you mean 'uniform'?); one distribution of:"),
        ({"lr": {"uniform": [0, 1], "choice": [1]}}, "random", "one distribution of:"),
        ({"lr": {"uniform": [0, 1], "when": 3}}, "random", "when: read 3"),
        (
            {"lr": {"uniform": [0, 1], "when": {"layer": 1}}, "layers": 1},
            "random",
            "no hyper-parameter 'layer' (did you",
        ),
        (
            {"a": {"choice": [1], "when": {"b": 1}}, "b": {"choice": [1], "when": {"a": 1}}},
            "random",
            "depend on each other",
        ),
        (
            {"a": {"choice": [1], "when": {"b": "2"}}, "b": {"choice": [1, 2]}},
            "random",
            "when: b is never '2'; it is choice [1, 2]",
        ),
        ({"a": {"choice": [1], "when": {"b": 5}}, "b": {"randint": [1, 5]}}, "random", "b is never 5; it is randint"),
        ({"lr": None}, "random", "read None, which cannot be written"),
        ({"lr": {"constant": None}}, "random", "read None, which cannot be written"),
        ({"lr": [0.9, None]}, "random", "read [0.9, None], whose None cannot be written"),
        ({"lr": {"choice": [1, None]}}, "random", "choice: None cannot be written"),
        ({"lr": {"choice": [{"rate": None}]}}, "random", "choice: None cannot be written"),
        ({"b": 1, "lr": {"uniform": [0, 1], "when": {"b": None}}}, "random", "{'b': None}; None cannot be written"),
        (
            {"b": {"uniform": [0, 1]}, "lr": {"uniform": [0, 1], "when": {"b": [None, 0.5]}}},
            "random",
            "when: read {'b': [None, 0.5]}; None cannot be written",
        ),
        ({"lr": {"uniform": [0, 10**400]}}, "random", "numbers up to"),
        ({"n": {"qrandint": [6, 9, 5]}}, "random", "there is no multiple of 5 from 6 to 9"),
        ({"n": {"qlograndint": [1, 9, 10]}}, "random", "there is no multiple of 10 from 1 to 9"),
        ({"n": {"quniform": [0.1, 0.4, 0.5]}}, "random", "there is no multiple of 0.5 from 0.1 to 0.4"),
        ({"lr": {"uniform": [0, 1]}}, "grid", "uniform has no end of values"),
        ({"lr": {"grid_search": [1]}}, "random", 'search.algorithm = "grid"'),
        ({"lr": {"randn": [0, 1]}}, "tpe", "tpe has no randn"),
    ],
)
def test_faults_are_one_line_that_names_the_key(table: dict[str, Any], algorithm: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(table, algorithm)
    (fault,) = caught.value.faults
    assert message in fault
    assert "\n" not in fault


def test_every_fault_is_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        parse({"a": {"uniform": [1, 0]}, "b": {"nope": 1}, "c": {"choice": []}})
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["space.a", "space.b", "space.c"]
