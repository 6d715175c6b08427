"""Which trainings of a set are given out, when, and what the sampler of the sets learns."""

import math
import pickle

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.search.generations import Generations
from raygpu.search.repeats import (
    Repeats,
    Repetition,
    first_round,
    given_at_once,
    known_trials,
    may_be_stopped,
    repeated,
)
from raygpu.search.samplers import DrawnTrials, OptunaSampler, sampler
from raygpu.search.space import parse, random_trials, trial_seed
from raygpu.search.trials import Trial

SPACE = parse({"lr": {"uniform": [0.0, 1.0]}})


class Base(DrawnTrials):
    """Drawn sets that note what they are told."""

    def __init__(self, count):
        super().__init__([Trial(Trial.name(i), 99 + i, {"lr": i / 10}) for i in range(count)])
        self.told = {}

    def tell(self, trial_id, score):
        self.told[trial_id] = score


def repeats_of(count, repeats, folds=None, **rules):
    return Repeats(Base(count), Repetition(repeats, folds), seed=7, maximize=True, **rules)


def drawn(search):
    """Return all trainings that the search gives out now."""
    found = []
    while (trial := search.next()) is not None:
        found.append(trial)
    return found


def names(trials):
    return [trial.trial_id for trial in trials]


def test_all_repeats_are_given_out_at_once_with_the_same_seeds_in_every_set():
    search = repeats_of(2, 3)
    given = drawn(search)
    assert names(given) == ["t0000-1", "t0000-2", "t0000-3", "t0001-1", "t0001-2", "t0001-3"]
    assert [trial.seed for trial in given] == 2 * [trial_seed(7, number) for number in range(3)]
    assert [trial.repeat for trial in given] == [0, 1, 2, 0, 1, 2]
    assert {trial.fold for trial in given} == {None}
    assert [trial.hyperparameters["lr"] for trial in given] == [0.0, 0.0, 0.0, 0.1, 0.1, 0.1]
    assert search.finished
    assert (search.num_trials, search.num_sets) == (6, 2)
    assert known_trials(search) == given


def test_folds_are_counted_within_repeats():
    given = drawn(repeats_of(1, 2, 3))
    assert [(trial.repeat, trial.fold) for trial in given] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert names(given)[-1] == "t0000-6"
    assert [trial.seed for trial in given] == 3 * [trial_seed(7, 0)] + 3 * [trial_seed(7, 1)]
    assert [Repetition(2, 3).seed_of(trial.trial_id, 7) for trial in given] == [trial.seed for trial in given]
    assert Repetition().seed_of("t0012", 7) == trial_seed(7, 12)


def test_the_base_learns_the_mean_once_all_repeats_have_ended():
    search = repeats_of(2, 3)
    drawn(search)
    for number, score in enumerate((0.5, 0.7)):
        search.tell(f"t0001-{number + 1}", score)
    assert search.base.told == {}
    search.tell("t0001-3", 0.9)
    assert search.base.told == {"t0001": pytest.approx(0.7)}


def test_the_base_learns_of_failures_and_divergence():
    search = repeats_of(3, 2)
    drawn(search)
    for name, score in (("t0000-1", None), ("t0000-2", 0.5), ("t0001-1", None), ("t0001-2", None)):
        search.tell(name, score)
    search.tell("t0002-1", -math.inf)
    search.tell("t0002-2", 0.9)
    assert search.base.told == {"t0000": 0.5, "t0001": None, "t0002": -math.inf}
    assert search.num_trials == 6  # all had been given out


def test_only_the_first_training_may_be_stopped_and_the_others_follow_if_it_was_not():
    search = repeats_of(3, 4, screened=True)
    assert names(drawn(search)) == ["t0000-1", "t0001-1", "t0002-1"]
    assert not search.finished
    search.tell("t0001-1", 0.3, stopped=True)
    assert drawn(search) == []
    assert search.num_trials == 9
    search.tell("t0000-1", 0.9)
    assert names(drawn(search)) == ["t0000-2", "t0000-3", "t0000-4"]
    search.tell("t0002-1", None)
    assert (search.num_trials, search.finished) == (6, True)
    assert search.base.told == {"t0001": 0.3, "t0002": None}
    assert [may_be_stopped(name) for name in ("t0003", "t0003-1", "t0003-2")] == [True, True, False]


def score_of(trial):
    """Return a score by which the sets are ranked as they were drawn, t0000 first, with little noise."""
    return 0.9 - int(trial.set_id[1:]) / 100 + trial.repeat / 10_000


def test_racing_gives_out_rounds_and_leaves_out_what_is_clearly_worse():
    search = repeats_of(3, 8, racing=True)
    first = drawn(search)
    assert names(first) == [f"t000{place}-{number}" for place in range(3) for number in range(1, 6)]
    for trial in first[:-1]:
        search.tell(trial.trial_id, score_of(trial))
    assert search.next() is None  # the round has not ended
    assert not search.finished
    search.tell(first[-1].trial_id, score_of(first[-1]))
    assert names(drawn(search)) == ["t0000-6"]
    assert search.num_trials == 5 * 3 + 3
    assert search.saved == {f"t000{place}-{number}" for place in (1, 2) for number in (6, 7, 8)}
    assert search.base.told.keys() == {"t0001", "t0002"}
    for number in (6, 7):
        search.tell(f"t0000-{number}", 0.9)
        assert names(drawn(search)) == [f"t0000-{number + 1}"]
    assert search.finished
    search.tell("t0000-8", 0.9)
    assert search.base.told.keys() == {"t0000", "t0001", "t0002"}
    assert drawn(search) == []


def test_a_set_that_was_left_out_goes_on_when_the_leading_set_loses_its_lead():
    search = repeats_of(2, 6, racing=True)
    for trial in drawn(search):
        search.tell(trial.trial_id, score_of(trial))
    assert names(drawn(search)) == ["t0000-6"]
    search.tell("t0000-6", 0.1)
    assert names(drawn(search)) == ["t0001-6"]
    assert (search.num_trials, search.saved) == (12, set())


def test_equal_sets_are_raced_to_the_end():
    search = repeats_of(2, 7, racing=True)
    while given := drawn(search):
        for trial in given:
            search.tell(trial.trial_id, 0.5)
    assert search.finished
    assert (search.num_trials, len(search.base.told)) == (14, 2)


def test_a_set_with_a_failed_repeat_gets_no_other_until_it_is_trained_again():
    search = repeats_of(2, 8, racing=True)
    first = drawn(search)
    for trial in first:
        search.tell(trial.trial_id, None if trial.trial_id == "t0000-2" else 0.5)
    assert names(drawn(search)) == ["t0001-6"]
    search.tell("t0000-2", 0.5)  # --retry failed
    search.tell("t0001-6", 0.5)
    assert sorted(names(drawn(search))) == ["t0000-6", "t0001-7"]


def test_optunas_generations_are_told_means():
    search = Repeats(
        OptunaSampler(SPACE, Generations.equal(5, 2), 0, maximize=[True]), Repetition(3), seed=0, maximize=True
    )
    given, sizes = [], []
    while round_ := drawn(search):
        sizes.append(len(round_))
        for trial in round_:
            search.tell(trial.trial_id, trial.hyperparameters["lr"])
        given += round_
    assert sizes == [6, 6, 3]
    assert search.finished
    assert len({trial.trial_id for trial in given}) == 15
    assert known_trials(search) is None


def test_without_generations_a_set_under_way_goes_before_a_new_one():
    base = OptunaSampler(SPACE, Generations.equal(3, 8), 0, maximize=[True])
    search = Repeats(base, Repetition(3), seed=0, maximize=True, screened=True)
    search.end_generations()
    assert search.draws_singly
    assert names([search.next(), search.next()]) == ["t0000-1", "t0001-1"]
    search.tell("t0000-1", 0.5)
    assert names([search.next(), search.next(), search.next()]) == ["t0000-2", "t0000-3", "t0002-1"]
    assert search.next() is None
    search.tell("t0001-1", 0.5, stopped=True)
    search.tell("t0002-1", 0.7)
    assert names(drawn(search)) == ["t0002-2", "t0002-3"]
    assert search.finished


def test_it_goes_on_after_a_pickle_with_more_sets_and_more_repeats():
    search = repeats_of(2, 2)
    for trial in drawn(search):
        search.tell(trial.trial_id, 0.5)
    again = pickle.loads(pickle.dumps(search))
    assert again.finished
    again.extend(repeats_of(3, 3))
    assert not again.finished
    assert names(drawn(again)) == ["t0000-3", "t0001-3", "t0002-1", "t0002-2", "t0002-3"]
    assert (again.finished, again.num_trials) == (True, 9)


def test_a_set_whose_failed_trainings_are_given_again_is_judged_once_all_of_them_have_ended():
    search = repeats_of(2, 3)
    for trial in drawn(search):
        search.tell(trial.trial_id, None if trial.trial_id != "t0001-1" else 0.6)
    assert search.base.told == {"t0000": None, "t0001": 0.6}
    search.base.told.clear()
    search.give_again(["t0000-1", "t0000-2", "t0000-3", "t0001-2", "t0001-3"])
    for number, score in enumerate([0.9, 0.3, 0.3], start=1):
        assert search.base.told == {}
        search.tell(f"t0000-{number}", score)
    assert search.base.told == {"t0000": pytest.approx(0.5)}
    search.tell("t0001-2", None)
    search.tell("t0001-3", 0.8)
    assert search.base.told["t0001"] == pytest.approx(0.7)


def test_more_repeats_are_not_given_to_sets_that_are_left_out():
    search = repeats_of(2, 6, racing=True)
    while given := drawn(search):
        for trial in given:
            search.tell(trial.trial_id, score_of(trial))
    search.extend(repeats_of(2, 8, racing=True))
    assert search.num_trials == 5 + 8
    assert names(drawn(search)) == ["t0000-7"]


def test_other_sets_are_refused():
    with pytest.raises(BadInput, match="other trials"):
        repeats_of(2, 2).extend(Repeats(DrawnTrials(random_trials(SPACE, 3, 1)), Repetition(2), 7, maximize=True))


@pytest.mark.parametrize(
    ("fields", "first", "at_once", "alone"),
    [
        ({}, 1, None, None),
        ({"repeats": 3}, 3, None, None),
        ({"repeats": 8, "racing": True}, 5, 20, 20),
        ({"repeats": 3, "stopping": {"algorithm": "median"}}, 1, 4, 4),
        ({"repeats": 3, "search": {"algorithm": "tpe", "generation": 2}}, 3, 6, 6),
        ({"search": {"algorithm": "tpe", "generation": 2}}, 1, 2, 2),
        ({"search": {"algorithm": "tpe"}}, 1, 8, None),
    ],
)
def test_the_plan_knows_how_many_are_given_out(fields, first, at_once, alone):
    config = SweepConfig(experiment="a:b", trials=4, metric="accuracy", **fields)
    assert (first_round(config), given_at_once(config, in_arrays=True)) == (first, at_once)
    assert given_at_once(config, in_arrays=False) == alone
    search = repeated(sampler(config, SPACE), config)
    assert isinstance(search, Repeats) == (config.repeats > 1)
    assert len(drawn(search)) == min(at_once or 4 * config.repeats, 4 * config.repeats)


@pytest.mark.parametrize(
    ("fields", "at_once"),
    [
        ({"trials": 1024}, 30),
        ({"trials": 1024, "repeats": 3}, 3 * 30),
        ({"trials": 1024, "time_budget_s": 60.0}, 8),
        ({"trials": 64}, 8),
        ({"trials": 1024, "search": {"algorithm": "tpe", "generation": 16}}, 16),
        ({"trials": 17, "search": {"algorithm": "nsgaii", "generation": 16}}, 16),
    ],
)
def test_the_plan_of_arrays_counts_on_generations_of_a_mean_size(fields, at_once):
    config = SweepConfig(**{"experiment": "a:b", "metric": "accuracy", "search": {"algorithm": "tpe"}} | fields)
    assert given_at_once(config, in_arrays=True) == at_once
