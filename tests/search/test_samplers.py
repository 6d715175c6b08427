from __future__ import annotations

import math

import pytest
from ray import cloudpickle

from raygpu.search.samplers import DrawnTrials, Generations
from raygpu.search.space import parse, random_trials
from raygpu.search.trials import Trial

SPACE = parse(
    {
        "x": {"uniform": [-2.0, 2.0]},
        "kind": {"choice": ["near", "far"]},
        "n": {"randint": [1, 4]},
        "step": {"quniform": [0.0, 1.0, 0.25]},
        "extra": {"loguniform": [1e-3, 1.0], "when": {"kind": "far"}},
        "batch_size": 32,
    },
    "optuna",
)


def objective(trial: Trial) -> float:
    hp = trial.hyperparameters
    return hp["x"] ** 2 + (1.0 if hp["kind"] == "far" else 0.0)


def run(search: Generations, *, reverse: bool = False) -> list[Trial]:
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


def test_generations_wait_for_their_scores() -> None:
    search = Generations(SPACE, num_trials=7, generation=3, seed=0, maximize=False)
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
    forwards = run(Generations(SPACE, 24, 6, seed=3, maximize=False))
    backwards = run(Generations(SPACE, 24, 6, seed=3, maximize=False), reverse=True)
    assert forwards == backwards
    assert [trial.trial_id for trial in forwards] == [Trial.name(i) for i in range(24)]


def test_it_learns() -> None:
    learned = run(Generations(SPACE, 64, 8, seed=0, maximize=False))
    random = random_trials(SPACE, 64, seed=0)
    assert sum(map(objective, learned[32:])) < sum(map(objective, random[32:]))


def test_conditions_hold() -> None:
    for trial in run(Generations(SPACE, 24, 8, seed=1, maximize=False)):
        hp = trial.hyperparameters
        assert ("extra" in hp) == (hp["kind"] == "far")
        assert hp["n"] in (1, 2, 3)
        assert hp["step"] % 0.25 == 0
        assert hp["batch_size"] == 32


@pytest.mark.parametrize("score", [None, math.inf, math.nan])
def test_a_trial_that_failed_or_diverged_does_not_block(score: float | None) -> None:
    search = Generations(SPACE, 4, 2, seed=0, maximize=False)
    for trial in (search.next(), search.next()):
        search.tell(trial.trial_id, score)
    assert search.next() is not None


def test_a_search_goes_on_after_a_stop() -> None:
    search = Generations(SPACE, 16, 4, seed=0, maximize=False)
    for trial in [search.next() for _ in range(4)]:
        search.tell(trial.trial_id, objective(trial))
    copy = cloudpickle.loads(cloudpickle.dumps(search))
    assert run(copy) == run(search)
