"""The rules of population based training are Ray Tune's own."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import pbt as ray_pbt

from raygpu.config.population_section import PopulationSection
from raygpu.errors import BadInput
from raygpu.search.exploration import changing, explore, populations, quantiles, taken_over
from raygpu.search.space import Parameter, parse
from raygpu.search.trials import Trial

SPACE = {
    "lr": {"loguniform": [1e-3, 1.0]},
    "momentum": {"uniform": [0.0, 0.95]},
    "weight_decay": {"choice": [0.0, 1e-4, 1e-3, 1e-2]},
    "eps": 1e-8,
    "hidden": {"choice": [16, 32]},
}
PARAMETERS = {parameter.name: parameter for parameter in parse(SPACE).parameters}


class RayTrial:
    """As much of a trial of Tune as its quantiles look at."""

    def __init__(self, name: str) -> None:
        self.name = name

    def is_finished(self) -> bool:
        return False


@given(
    scores=st.lists(st.floats(-1e6, 1e6, allow_nan=False) | st.sampled_from([0.5, 0.9]), max_size=40),
    fraction=st.sampled_from([0.1, 0.2, 0.25, 0.4, 0.5]),
)
def test_quantiles_are_those_of_ray(scores: list[float], fraction: float) -> None:
    trials = [RayTrial(f"t{i:04d}") for i in range(len(scores))]
    scheduler = ray_pbt.PopulationBasedTraining(
        metric="score", mode="max", hyperparam_mutations={"lr": [0.1]}, quantile_fraction=fraction
    )
    scheduler._trial_state = {
        trial: SimpleNamespace(last_score=score) for trial, score in zip(trials, scores, strict=True)
    }
    lowest, highest = scheduler._quantiles()
    own = quantiles([(trial.name, score) for trial, score in zip(trials, scores, strict=True)], fraction)
    assert own == ([trial.name for trial in lowest], [trial.name for trial in highest])


@given(seed=st.integers(0, 2**32), value=st.sampled_from([0.0, 1e-4, 1e-3, 1e-2, 0.5]), resample=st.floats(0, 1))
def test_a_list_is_explored_as_by_ray(seed: int, value: float, resample: float) -> None:
    options = SPACE["weight_decay"]["choice"]  # type: ignore[index]
    random.seed(seed)
    wanted, _ = ray_pbt._explore({"weight_decay": value}, {"weight_decay": options}, resample, (1.2, 0.8), None)
    found = explore(random.Random(seed), {"weight_decay": value}, [PARAMETERS["weight_decay"]], resample)
    assert found == wanted


@given(seed=st.integers(0, 2**32), lr=st.floats(1e-6, 10), resample=st.floats(0, 1))
def test_a_number_is_explored_as_by_ray(seed: int, lr: float, resample: float) -> None:
    parameter = PARAMETERS["lr"]

    def drawn() -> float:
        """Draw as raygpu does, by the random numbers that Ray draws by."""
        return float(parameter.draw(random.getrandbits(32), 0))

    random.seed(seed)
    wanted, _ = ray_pbt._explore({"lr": lr}, {"lr": drawn}, resample, (1.2, 0.8), None)
    assert explore(random.Random(seed), {"lr": lr}, [parameter], resample) == wanted


@given(seed=st.integers(0, 2**32), momentum=st.floats(0.0, 0.95), resample=st.floats(0, 1))
def test_a_momentum_stays_in_its_range(seed: int, momentum: float, resample: float) -> None:
    found = explore(random.Random(seed), {"momentum": momentum}, [PARAMETERS["momentum"]], resample)["momentum"]
    assert 0.0 <= found <= 0.95


def test_a_learning_rate_may_leave_its_range_and_a_constant_is_changed_by_factors_alone() -> None:
    found = {explore(random.Random(i), {"lr": 1e-3}, [PARAMETERS["lr"]], 0.0)["lr"] for i in range(20)}
    assert found == {1e-3 * 1.2, 1e-3 * 0.8}
    constant = {explore(random.Random(i), {"eps": 1e-8}, [PARAMETERS["eps"]], 1.0)["eps"] for i in range(20)}
    assert constant == {1e-8 * 1.2, 1e-8 * 0.8}


@pytest.mark.parametrize("name", ["weight_decay", "clip_norm", "lr", "momentum"])
def test_a_whole_number_that_is_a_constant_is_changed_too(name: str) -> None:
    (parameter,) = parse({name: 1}).parameters
    found = {explore(random.Random(i), {name: 1}, [parameter], 0.0)[name] for i in range(20)}
    assert found == {1 if name == "momentum" else 1.2, 0.8}


def test_whole_numbers_that_are_drawn_stay_whole() -> None:
    (parameter,) = parse({"clip_norm": {"randint": [1, 100]}}).parameters
    found = {explore(random.Random(i), {"clip_norm": 12}, [parameter], 0.0)["clip_norm"] for i in range(20)}
    assert found == {14, 10}


def test_each_of_adams_betas_is_changed_and_stays_below_1() -> None:
    (parameter,) = parse({"betas": [0.9, 0.99]}).parameters
    found = [explore(random.Random(i), {"betas": [0.9, 0.99]}, [parameter], 0.5)["betas"] for i in range(40)]
    assert {round(first, 12) for first, _ in found} == {0.88, 0.92}
    assert {round(second, 12) for _, second in found} == {0.988, 0.992}
    betas = [0.0, 0.999]
    for i in range(1000):
        betas = explore(random.Random(i), {"betas": betas}, [parameter], 0.0)["betas"]
        assert all(0 <= beta < 1 for beta in betas)


def test_steps_are_kept() -> None:
    parameter = Parameter("lr", "quniform", (0.1, 1.0, 0.1), {})
    found = {explore(random.Random(i), {"lr": 0.5}, [parameter], 0.0)["lr"] for i in range(20)}
    assert found == {0.6, 0.4}


@pytest.mark.parametrize(
    ("name", "distribution", "old", "found"),
    [
        ("momentum", {"quniform": [0.0, 0.9, 0.1]}, 0.2, {0.1, 0.3}),
        ("momentum", {"quniform": [0.0, 0.9, 0.1]}, 0.9, {0.9, 0.7}),
        ("momentum", {"quniform": [0.0, 0.9, 0.1]}, 0.1, {0.1, 0.2}),
        ("momentum", {"quniform": [0.0, 0.9, 0.1]}, 0.0, {0.0, 0.1}),
        ("lr", {"qloguniform": [1e-4, 1.0, 1e-3]}, 1e-4, {1e-4, 1e-3}),
        ("lr", {"quniform": [0.1, 0.2, 0.1]}, 0.2, {0.1, 0.2}),
        ("clip_norm", {"randint": [1, 100]}, 2, {1, 3}),
        ("clip_norm", {"randint": [1, 3]}, 2, {1, 2}),
        ("clip_norm", {"randint": [0, 100]}, 1, {1, 2}),
        ("clip_norm", {"qrandint": [2, 40, 2]}, 4, {2, 6}),
    ],
    ids=["between", "end", "no 0", "from 0", "beside steps", "rate", "whole", "open end", "no whole 0", "by 2"],
)  # fmt: skip
def test_a_factor_that_rounds_back_takes_the_next_step_within_the_range(
    name: str, distribution: dict[str, Any], old: float, found: set[float]
) -> None:
    (parameter,) = parse({name: distribution}).parameters
    values = [explore(random.Random(i), {name: old}, [parameter], 0.0)[name] for i in range(20)]
    assert set(values) == found
    assert all(isinstance(value, int) for value in values) == ("randint" in next(iter(distribution)))


def test_what_changes_without_being_named() -> None:
    names = [parameter.name for parameter in changing(PopulationSection(interval=1), parse(SPACE))]
    assert names == ["lr", "momentum", "weight_decay"]
    chosen = PopulationSection(interval=1, change=["eps"])  # type: ignore[arg-type]
    assert [parameter.name for parameter in changing(chosen, parse(SPACE))] == ["eps"]


@pytest.mark.parametrize(
    ("space", "change", "line"),
    [
        ({"lr": 0.1, "hidden": {"choice": [16, 32]}}, "auto", "draws nothing that may change"),
        (
            {"lr": 0.1, "weight_decay": 0},
            "weight_decay",
            "weight_decay is 0 in every trial, from which no factor leads",
        ),
        ({"lr": 0.1, "betas": "small"}, "betas", "betas is 'small' in every trial"),
        ({"lr": {"uniform": [0.1, 1.0]}}, "momentum", "read 'momentum', which \\[space\\] does not have"),
    ],
)
def test_refusals(space: dict[str, Any], change: str, line: str) -> None:
    with pytest.raises(BadInput, match=line):
        changing(PopulationSection(interval=1, change=change), parse(space))


def test_trials_that_differ_in_what_cannot_change_are_populations_of_their_own() -> None:
    trials = [Trial(f"t{i:04d}", i, {"lr": 0.1 * i, "hidden": 16 + 16 * (i % 2)}) for i in range(4)]
    groups = populations(trials, ["lr"])
    assert groups["t0000"] == groups["t0002"] != groups["t0001"] == groups["t0003"]


def test_trials_that_differ_in_their_steps_alone_are_one_population() -> None:
    trials = [Trial(f"t{i:04d}", i, {"lr": 0.1 * i, "momentum": 0.3 * i, "gamma": i, "hidden": 16}) for i in range(4)]
    assert len(set(populations(trials, ["lr", "momentum", "gamma"]).values())) == 1
    assert len(set(populations(trials, ["lr", "gamma"]).values())) == 4, "their momentum would not be taken over"


def test_a_trial_takes_over_all_numbers_of_a_step_in_which_trials_differ() -> None:
    rates = {"schedule": {"choice": ["constant", "cosine"]}, "warmup_epochs": {"uniform": [0, 3]}, "gamma": 0.5}
    space = parse({**SPACE, **rates, "nesterov": True})
    parameters = changing(PopulationSection(interval=1, change="momentum"), space)
    rate = ("lr", "schedule", "warmup_epochs")
    assert taken_over(parameters, space, "torch") == ("momentum", "nesterov", "lr", "weight_decay", *rate[1:])
    assert taken_over([PARAMETERS["lr"]], space, "keras") == rate, "the others are traced"
    assert taken_over([PARAMETERS["eps"]], parse(SPACE), "torch") == ("eps", "lr", "momentum", "weight_decay")


def test_a_value_that_a_donor_does_not_have_is_not_taken_over() -> None:
    spaces = [{"schedule": "constant"}, {"schedule": "step", "gamma": 0.5}, {"schedule": "step", "gamma": 0.1}]
    trials = [Trial(Trial.name(i), i, {"lr": 0.1, **values}) for i, values in enumerate(spaces)]
    apart = populations(trials, ["lr", "schedule", "gamma"])
    assert apart["t0000"] != apart["t0001"] == apart["t0002"]


def test_what_does_not_change_is_the_donors_and_nesterov_keeps_its_momentum() -> None:
    (momentum,) = parse({"momentum": {"choice": [0.0, 0.9]}}).parameters
    for nesterov, found in ((True, {0.9}), (False, {0.0, 0.9})):
        donor = {"momentum": 0.9, "lr": 0.1, "nesterov": nesterov, "schedule": "cosine"}
        explored = [explore(random.Random(i), donor, [momentum], 0.5) for i in range(20)]
        assert {values["momentum"] for values in explored} == found
        assert all(values | {"momentum": 0.9} == donor for values in explored)
