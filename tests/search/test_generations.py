"""Generations of a search: how many sets it draws before it wants their results."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.search.generations import Generations
from raygpu.search.samplers import OptunaSampler
from raygpu.search.space import parse


def of(trials: int | None = 300, *, in_arrays: bool = True, **search: object) -> Generations | None:
    values = {"experiment": "a:b", "metric": "loss", "trials": trials, "search": search}
    return Generations.of(SweepConfig.model_validate(values), in_arrays=in_arrays)


def sizes(generations: Generations) -> list[int]:
    return [generations.end(start) - start for start in generations.starts]


def test_tpes_generations_are_an_eighth_of_the_sets_before() -> None:
    found = of(algorithm="tpe")
    assert found is not None
    assert sizes(found) == [*[8] * 9, 9, 10, 11, 12, 14, 16, 18, 20, 22, 25, 28, 32, 11]
    assert (found.first, found.largest, str(found)) == (8, 32, "8 to 32")
    assert max(sizes(Generations.growing(5_000))) == 64


@pytest.mark.parametrize("algorithm", ["gp", "cmaes", "nsgaii"])
def test_the_other_samplers_have_eight_at_once(algorithm: str) -> None:
    found = of(20, algorithm=algorithm)
    assert found is not None
    assert (sizes(found), str(found)) == ([8, 8, 4], "8")


def test_a_given_size_stays() -> None:
    found = of(100, algorithm="tpe", generation=30)
    assert found is not None
    assert sizes(found) == [30, 30, 30, 10]


def test_a_search_that_does_not_learn_has_none() -> None:
    assert of(algorithm="random") is None
    assert of(None, algorithm="grid") is None


@pytest.mark.parametrize(
    ("search", "size"),
    [
        ({"algorithm": "tpe"}, None),
        ({"algorithm": "gp"}, None),
        ({"algorithm": "tpe", "generation": 5}, 5),
        ({"algorithm": "cmaes"}, 8),
        ({"algorithm": "nsgaii"}, 8),
    ],
)
def test_of_trials_alone_only_searches_that_compare_generations_have_some(search: Any, size: int | None) -> None:
    found = of(in_arrays=False, **search)
    assert (found and found.first) == size


def test_racing_compares_the_sets_of_a_generation() -> None:
    values = {"experiment": "a:b", "metric": "loss", "trials": 9, "repeats": 8, "racing": True}
    config = SweepConfig.model_validate(values | {"search": {"algorithm": "tpe"}})
    assert Generations.of(config, in_arrays=False) == Generations.growing(9)


@pytest.mark.parametrize("generations", [Generations.growing(300), Generations.equal(300, 7)])
def test_each_set_is_of_the_generation_that_it_is_drawn_in(generations: Generations) -> None:
    for before in range(300):
        start = generations.starts[generations.number(before)]
        assert start <= before < generations.end(start) == generations.end(before)


def test_longer_searches_begin_alike() -> None:
    assert Generations.growing(300).starts[:12] == Generations.growing(100).starts


@pytest.mark.parametrize(("before", "after", "size"), [((100, None), (200, None), 14), ((20, 8), (60, 8), 12)])
def test_a_search_that_goes_on_begins_with_no_rest_of_a_generation(
    before: tuple[int, int | None], after: tuple[int, int | None], size: int
) -> None:
    def search(num_sets: int, width: int | None) -> OptunaSampler:
        generations = Generations.growing(num_sets) if width is None else Generations.equal(num_sets, width)
        return OptunaSampler(parse({"x": {"uniform": [0, 1]}}, "tpe"), generations, 0, [True])

    goes_on = search(*before)
    while not goes_on.finished:
        for trial in list(iter(goes_on.next, None)):
            goes_on.tell(trial.trial_id, 1.0)
    goes_on.extend(search(*after))
    assert len(list(iter(goes_on.next, None))) == size


def test_a_short_search_has_the_population_of_a_long_one() -> None:
    found = of(4, algorithm="nsgaii")
    assert found is not None
    assert (found.first, str(found)) == (8, "4")
