from __future__ import annotations

import math
import tomllib
from typing import Any

import pytest
import tomli_w
from ray import cloudpickle

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.search.generations import Generations
from raygpu.search.samplers import DrawnTrials, OptunaSampler, sampler
from raygpu.search.scoring import LARGEST
from raygpu.search.space import parse, random_trials
from raygpu.search.trials import Trial

SLOW = pytest.mark.slow
SPACE = parse(
    {
        "x": {"uniform": [-2.0, 2.0]},
        "kind": {"choice": ["near", "far"]},
        "n": {"randint": [1, 4]},
        "step": {"quniform": [0.0, 1.0, 0.25]},
        "extra": {"loguniform": [1e-3, 1.0], "when": {"kind": "far"}},
        "batch_size": 32,
    },
    "tpe",
)


def objective(trial: Trial) -> float:
    hp = trial.hyperparameters
    return hp["x"] ** 2 + (1.0 if hp.get("kind") == "far" else 0.0)


def run(search: OptunaSampler, *, reverse: bool = False) -> list[Trial]:
    """Ask until it waits, then tell the scores, in the order asked or in the reverse."""
    done: list[Trial] = []
    while not search.finished:
        generation = []
        while (trial := search.next()) is not None:
            generation.append(trial)
        for trial in reversed(generation) if reverse else generation:
            search.tell(trial.trial_id, objective(trial))
        done += generation
    return done


def test_drawn_gives_its_list_and_ends() -> None:
    search = DrawnTrials(random_trials(SPACE, 3, seed=0))
    assert [search.next() for _ in range(3)] == search.trials
    assert search.finished
    assert search.next() is None


def test_a_list_that_is_saved_again_and_again_is_pickled_once() -> None:
    search = DrawnTrials(random_trials(SPACE, 5, seed=1))
    search.next()
    first = cloudpickle.dumps(search)
    search.next()
    again = cloudpickle.loads(cloudpickle.dumps(search))
    assert [again.next(), again.next()] == search.trials[2:4]
    earlier = cloudpickle.loads(first)
    earlier.extend(DrawnTrials(random_trials(SPACE, 8, seed=1)))
    assert len(cloudpickle.loads(cloudpickle.dumps(earlier)).trials) == 8
    assert earlier.next() == search.trials[1]


def test_generations_wait_for_their_scores() -> None:
    search = OptunaSampler(SPACE, Generations.equal(7, 3), seed=0, maximize=[False])
    first = [search.next() for _ in range(3)]
    assert None not in first
    assert search.next() is None
    for trial in first[:2]:
        search.tell(trial.trial_id, 1.0)
    assert search.next() is None, "one score is still missing"
    search.tell(first[2].trial_id, 1.0)
    fourth = search.next()
    assert fourth is not None
    search.tell(fourth.trial_id, 1.0)
    assert len(run(search)) == 3


def test_the_order_in_which_trials_end_does_not_matter() -> None:
    forwards = run(OptunaSampler(SPACE, Generations.equal(24, 6), seed=3, maximize=[False]))
    backwards = run(OptunaSampler(SPACE, Generations.equal(24, 6), seed=3, maximize=[False]), reverse=True)
    assert forwards == backwards
    assert [trial.trial_id for trial in forwards] == [Trial.name(i) for i in range(24)]


def singly(seed: int = 3, num_trials: int = 24) -> OptunaSampler:
    search = OptunaSampler(SPACE, Generations.equal(num_trials, 8), seed=seed, maximize=[False])
    search.end_generations()
    return search


def asked(search: OptunaSampler, count: int, *, told: bool) -> list[Trial]:
    """Ask for trials, and tell each one's score at once or never."""
    found = []
    for _ in range(count):
        trial = search.next()
        assert trial is not None
        found.append(trial)
        if told:
            search.tell(trial.trial_id, objective(trial))
    return found


def test_without_generations_each_trial_is_drawn_by_all_results_so_far() -> None:
    whole = asked(singly(), 24, told=True)
    assert [trial.trial_id for trial in whole] == [Trial.name(i) for i in range(24)]
    assert asked(singly(), 24, told=True) == whole, "the same results give the same trials"
    late = singly()
    first = asked(late, 16, told=False)
    assert first[:10] == whole[:10], "TPE's first trials are drawn at random"
    assert first[10:] != whole[10:16], "nothing is waited for"
    for trial in reversed(first):
        late.tell(trial.trial_id, objective(trial))
    learned = asked(late, 8, told=True)
    assert late.finished
    assert late.next() is None
    random = random_trials(SPACE, 24, seed=3)[16:]
    assert sum(map(objective, learned)) < sum(map(objective, random))


def test_without_generations_a_search_goes_on_after_a_stop_with_trials_under_way() -> None:
    search = singly()
    first = asked(search, 12, told=False)
    for trial in first[::2]:
        search.tell(trial.trial_id, objective(trial))
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    copy.extend(singly(num_trials=30))
    for trial in first[1::2]:
        search.tell(trial.trial_id, objective(trial))
        copy.tell(trial.trial_id, objective(trial))
    assert asked(copy, 12, told=True) == asked(search, 12, told=True)
    assert (len(asked(copy, 6, told=True)), copy.finished) == (6, True)


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "cmaes", "nsgaii"])
def test_a_trial_that_failed_and_is_trained_again_counts_or_stays_the_worst(algorithm: str) -> None:
    """CMA-ES and NSGA-II learn from whole generations, in which it has counted."""
    search = search_of(algorithm)
    first = list(iter(search.next, None))
    for trial in first:
        search.tell(trial.trial_id, None if trial.trial_id == "t0003" else objective(trial))
    after = search.next()
    assert after is not None, "it does not block"
    search.tell(after.trial_id, objective(after))
    search = cloudpickle.loads(cloudpickle.dumps(search))
    for score in (None, 0.25, 0.5):  # it fails once more, then counts, once
        search.tell("t0003", score)
    values = [trial.values for trial in search._study.trials if trial.params["x"] == first[3].hyperparameters["x"]]
    assert values == ([None, [0.25]] if algorithm in ("tpe", "gp") else [[LARGEST]])
    assert run(search)


def test_a_search_that_goes_on_in_arrays_waits_for_what_is_under_way() -> None:
    search = singly()
    first = asked(search, 3, told=False)
    search.extend(OptunaSampler(SPACE, Generations.equal(24, 8), seed=3, maximize=[False]))
    assert search.next() is None
    for trial in first:
        search.tell(trial.trial_id, objective(trial))
    assert len(list(iter(search.next, None))) == 13, "the rest of a generation and the next one"


def test_a_search_goes_on_with_its_space_as_its_file_has_it() -> None:
    """Constants come first there, and tuples are lists."""
    space = {"x": {"quniform": [0.05, 0.9, 0.1]}, "pair": {"choice": [(1, 2), (3, 4)]}, "width": 64}
    written = parse(tomllib.loads(tomli_w.dumps(space)))
    search, larger = (OptunaSampler(each, Generations.equal(24, 8), 3, [False]) for each in (parse(space), written))
    search.extend(larger)


def test_it_learns() -> None:
    learned = run(OptunaSampler(SPACE, Generations.equal(64, 8), seed=0, maximize=[False]))
    random = random_trials(SPACE, 64, seed=0)
    assert sum(map(objective, learned[32:])) < sum(map(objective, random[32:]))


@pytest.mark.parametrize(
    ("distribution", "allowed"),
    [
        ({"quniform": [0, 1, 0.1]}, {k / 10 for k in range(11)}),
        ({"quniform": [0.05, 0.97, 0.1]}, {k / 10 for k in range(1, 10)}),
        ({"qloguniform": [0.1, 1, 0.1]}, {k / 10 for k in range(1, 11)}),
        ({"qloguniform": [0.25, 3, 0.5]}, {0.5, 1.0, 1.5, 2.0, 2.5, 3.0}),
        ({"qrandint": [8, 64, 8]}, set(range(8, 65, 8))),
        ({"qlograndint": [4, 100, 8]}, set(range(8, 97, 8))),
    ],
)
@pytest.mark.filterwarnings("error:The distribution is specified")
def test_steps_are_those_of_a_random_search(distribution: dict[str, Any], allowed: set[float]) -> None:
    space = parse({"x": distribution})
    for trials in (
        run(OptunaSampler(space, Generations.equal(48, 8), seed=0, maximize=[False])),
        random_trials(space, 48, seed=0),
    ):
        drawn = [trial.hyperparameters["x"] for trial in trials]
        assert set(drawn) <= allowed
        assert len({type(value) for value in drawn}) == 1


def test_conditions_hold() -> None:
    for trial in run(OptunaSampler(SPACE, Generations.equal(24, 8), seed=1, maximize=[False])):
        hp = trial.hyperparameters
        assert ("extra" in hp) == (hp["kind"] == "far")
        assert hp["n"] in (1, 2, 3)
        assert hp["step"] % 0.25 == 0
        assert hp["batch_size"] == 32


def search_of(algorithm: str, **options: Any) -> OptunaSampler:
    if algorithm == "cmaes":
        pytest.importorskip("cmaes")
    num_trials = 16 if algorithm == "gp" else 24  # a Gaussian process takes seconds
    return OptunaSampler(SPACE, Generations.equal(num_trials, 8), 3, [False], algorithm=algorithm, **options)


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "cmaes", "nsgaii"])
def test_every_sampler_repeats_itself_begins_with_the_starts_and_goes_on_after_a_stop(algorithm: str) -> None:
    starts = [{"x": 0.5, "kind": "far", "extra": 0.25}, {"n": 2}]
    whole = run(search_of(algorithm, starts=starts), reverse=True)
    first, second = (trial.hyperparameters for trial in whole[:2])
    assert (first["x"], first["kind"], first["extra"]) == (0.5, "far", 0.25)
    assert second["n"] == 2
    assert len({trial.hyperparameters["x"] for trial in whole}) > 8, "nsgaii crosses earlier ones"
    search = search_of(algorithm, starts=starts)
    for trial in [search.next() for _ in range(8)]:
        search.tell(trial.trial_id, objective(trial))
    assert run(cloudpickle.loads(cloudpickle.dumps(search))) == whole[8:]


@pytest.mark.parametrize(("algorithm", "known"), [("tpe", 16), pytest.param("gp", 12, marks=SLOW), ("cmaes", 16)])
def test_every_sampler_learns(algorithm: str, known: int) -> None:
    learned = run(search_of(algorithm))[known:]
    random = random_trials(SPACE, 24, seed=3)[known : known + len(learned)]
    assert sum(map(objective, learned)) < sum(map(objective, random))


def test_a_gaussian_process_learns_beside_a_trial_that_diverged() -> None:
    space = parse({"x": {"uniform": [-2.0, 2.0]}, "y": {"uniform": [-2.0, 2.0]}}, "gp")
    search, scores = OptunaSampler(space, Generations.equal(20, 4), 2, [False], algorithm="gp"), list[float]()
    while not search.finished:
        for trial in [*iter(search.next, None)]:
            scores.append((trial.hyperparameters["x"] - 0.3) ** 2 + (trial.hyperparameters["y"] + 0.7) ** 2)
            search.tell(trial.trial_id, math.inf if trial.trial_id in ("t0000", "t0002") else scores[-1])
    assert min(scores[10:]) < 0.1, "the first ten are drawn"


def test_a_sampled_grid_goes_on_to_the_whole_one() -> None:
    space = {"a": {"choice": [1, 2, 3, 4]}, "b": {"choice": [4, 5, 6, 7]}}

    def search(trials: int, begun: int | None = None) -> DrawnTrials:
        config = config_of(search={"algorithm": "grid"}, space=space, trials=trials, start=[{"a": 3}])
        found = sampler(config, parse(space, "grid"), begun)
        assert isinstance(found, DrawnTrials)
        return found

    goes_on, whole = search(10), search(16)
    first = list(goes_on.trials)
    with pytest.raises(BadInput, match="with 16, the space gives other trials than at the sweep's start"):
        goes_on.extend(whole)
    for _ in range(2):
        goes_on.extend(search(16, begun=10))
    assert goes_on.trials[:10] == first
    assert sorted(str(each.hyperparameters) for each in goes_on.trials) == sorted(
        str(each.hyperparameters) for each in whole.trials
    )
    assert [(each.trial_id, each.seed) for each in goes_on.trials] == [(t.trial_id, t.seed) for t in whole.trials]
    assert search(40, begun=16).trials == whole.trials


def test_a_search_goes_on_whose_space_has_another_order_and_nan() -> None:
    def search(space: dict[str, Any], trials: int) -> DrawnTrials:
        found = sampler(config_of(space=space, trials=trials), parse(space))
        assert isinstance(found, DrawnTrials)
        return found

    space = {"a": {"choice": [1, math.nan]}, "b": {"uniform": [0, 1]}}
    goes_on = search(space, 4)
    goes_on.extend(search(dict(reversed(space.items())), 6))
    assert goes_on.num_trials == 6


@pytest.mark.parametrize("score", [None, math.inf, math.nan])
def test_a_trial_that_failed_or_diverged_does_not_block(score: float | None) -> None:
    search = OptunaSampler(SPACE, Generations.equal(4, 2), seed=0, maximize=[False])
    for trial in (search.next(), search.next()):
        search.tell(trial.trial_id, score)
    assert search.next() is not None


def test_a_search_goes_on_after_a_stop() -> None:
    search = OptunaSampler(SPACE, Generations.equal(16, 4), seed=0, maximize=[False])
    for trial in [search.next() for _ in range(4)]:
        search.tell(trial.trial_id, objective(trial))
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    assert run(copy) == run(search)


def config_of(**values: Any) -> SweepConfig:
    given = {"experiment": "m:f", "trials": 6, "metric": "loss", "space": {"x": {"uniform": [0, 1]}, "k": KINDS}}
    return SweepConfig.model_validate(given | values)


KINDS = {"choice": ["a", "b"]}


@pytest.mark.parametrize("algorithm", ["random", "qmc", "tpe", "nsgaii"])
def test_starts_count_as_trials_in_every_search(algorithm: str) -> None:
    config = config_of(search={"algorithm": algorithm, "generation": 6}, start=[{"x": 0.5}, {"k": "b", "x": 0.25}])
    search = sampler(config, parse(config.space, config.search.algorithm))
    trials = [search.next() for _ in range(6)]
    assert search.finished
    assert [trial and trial.hyperparameters["x"] for trial in trials[:2]] == [0.5, 0.25]
    assert trials[1] is not None
    assert trials[1].hyperparameters["k"] == "b"


def test_a_grid_begins_with_the_combinations_of_the_starts() -> None:
    space = {"a": {"choice": [1, 2, 3]}, "b": {"choice": [4, 5]}}
    config = config_of(search={"algorithm": "grid"}, space=space, start=[{"a": 3}, {"a": 1, "b": 5}], trials=None)
    search = sampler(config, parse(space, "grid"))
    assert isinstance(search, DrawnTrials)
    pairs = [(trial.hyperparameters["a"], trial.hyperparameters["b"]) for trial in search.trials]
    assert pairs == [(3, 4), (3, 5), (1, 5), (1, 4), (2, 4), (2, 5)]
    fewer = sampler(config.model_copy(update={"trials": 4}), parse(space, "grid"))
    assert isinstance(fewer, DrawnTrials)
    assert len(fewer.trials) == 4
    assert [trial.hyperparameters["a"] for trial in fewer.trials[:3]] == [3, 3, 1]


@pytest.mark.parametrize(("algorithm", "number"), [("tpe", 64), pytest.param("gp", 18, marks=SLOW), ("nsgaii", 24)])
def test_several_metrics_in_one_search(algorithm: str, number: int) -> None:
    """Near 0 the first metric is best, near 1 the second one; what lies outside is beaten in both."""

    def done(search: OptunaSampler) -> list[float]:
        found: list[float] = []
        while not search.finished:
            generation = [trial for _ in range(8) if (trial := search.next()) is not None]
            for number, trial in enumerate(generation):
                x = trial.hyperparameters["x"]
                further = (None,) if number == 3 else (abs(1 - x),)
                search.tell(trial.trial_id, None if number == 2 else -abs(x), further)
            found += [trial.hyperparameters["x"] for trial in generation]
        return found

    space = parse({"x": {"uniform": [-2.0, 2.0]}}, algorithm)
    found = done(OptunaSampler(space, Generations.equal(number, 8), 0, [True, False], algorithm=algorithm))
    assert found == done(OptunaSampler(space, Generations.equal(number, 8), 0, [True, False], algorithm=algorithm))
    assert len(found) == number
    if algorithm == "tpe":  # chance puts three in ten there
        assert sum(-0.1 <= x <= 1.1 for x in found[-16:]) > 10


def test_a_search_with_several_metrics_learns_from_all_of_them() -> None:
    values = {"experiment": "a:B", "trials": 64, "metrics": ["loss", "cost"], "space": {"x": {"uniform": [0.0, 1.0]}}}
    config = SweepConfig.model_validate(
        {**values, "directions": ["min", "min"], "search": {"algorithm": "tpe", "generation": 8}}
    )
    search = sampler(config, parse(config.space))
    drawn: list[Trial] = []
    while not search.finished:
        while (trial := search.next()) is not None:
            drawn.append(trial)
        for trial in drawn[-8:]:
            x = trial.hyperparameters["x"]
            search.tell(trial.trial_id, (x - 0.7) ** 2, ((x - 0.8) ** 2,))
    late = [trial.hyperparameters["x"] for trial in drawn[32:]]
    assert sum(0.65 <= x <= 0.85 for x in late) > 16, "the front lies between both minima"


@pytest.mark.parametrize("algorithm", ["random", "tpe", "qmc"])
def test_a_time_budget_stands_for_the_number_of_trials(algorithm: str) -> None:
    values = {"experiment": "a:b", "metric": "score", "search": {"algorithm": algorithm}, "space": {}}

    def drawn(**more: Any) -> int:
        return sampler(SweepConfig.model_validate(values | more), SPACE).num_trials

    assert drawn(time_budget_s=2.5) == 250
    assert drawn(time_budget_s=2.5, trials=7) == 7
    assert SweepConfig.model_validate(values | {"time_budget_s": 1e9}).num_sets == 100_000
    for more in ({}, {"time_budget_s": 9.0, "epochs": 4, "population": {"interval": 1}}):
        with pytest.raises(ValueError, match=r"trials: not given; .* may have a time_budget_s"):
            SweepConfig.model_validate(values | more)
