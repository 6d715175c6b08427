from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.tune.schedulers import MedianStoppingRule

from raygpu.search.median import Median
from tests.tune import Tune


def tunes(grace: int, min_trials: int, trial_ids: list[str], *, maximize: bool) -> Tune:
    scheduler = MedianStoppingRule(
        time_attr="training_iteration", grace_period=grace, min_samples_required=min_trials, hard_stop=True
    )
    return Tune(scheduler, trial_ids, maximize=maximize)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(("grace", "min_trials"), [(1, 3), (3, 1), (2, 8)])
def test_decides_as_tunes_rule(grace: int, min_trials: int, maximize: bool) -> None:
    """Trials report an epoch at a time in any order; those stopped report no more."""
    epochs, trial_ids = 8, [f"t{i:04d}" for i in range(24)]
    num_stopped = 0
    for seed in range(10):
        random = np.random.default_rng(seed)
        ours = Median(grace, min_trials, maximize=maximize)
        theirs = tunes(grace, min_trials, trial_ids, maximize=maximize)
        level = dict(zip(trial_ids, random.normal(size=len(trial_ids)).tolist(), strict=True))
        done = dict.fromkeys(trial_ids, 0)
        while done:
            trial_id = random.choice(list(done))
            done[trial_id] += 1
            scores = [(trial_id, level[trial_id] + float(random.normal()))]
            stopped = ours.decide(done[trial_id], scores)
            assert stopped == theirs.decide(done[trial_id], scores)
            num_stopped += len(stopped)
            assert not stopped or done[trial_id] >= grace
            if stopped or done[trial_id] == epochs:
                del done[trial_id]
    assert 20 < num_stopped < 220


@pytest.mark.parametrize("maximize", [True, False])
def test_many_at_once_are_decided_in_their_order(maximize: bool) -> None:
    trial_ids = [f"t{i:04d}" for i in range(30)]
    random = np.random.default_rng(0)
    ours, theirs = Median(2, 3, maximize=maximize), tunes(2, 3, trial_ids, maximize=maximize)
    left = trial_ids
    for epoch in range(1, 8):
        scores = [(trial_id, float(random.normal())) for trial_id in left]
        stopped = ours.decide(epoch, scores)
        assert stopped == theirs.decide(epoch, scores)
        left = [trial_id for trial_id in left if trial_id not in stopped]
    assert 0 < len(left) < 30


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(1, 4), st.booleans())
def test_equal_scores_are_decided_as_tune_does(scores: list[int], min_trials: int, maximize: bool) -> None:
    pairs = [(f"t{i:04d}", score / 4) for i, score in enumerate(scores)]
    ours = Median(1, min_trials, maximize=maximize)
    theirs = tunes(1, min_trials, [trial_id for trial_id, _ in pairs], maximize=maximize)
    assert ours.decide(1, pairs) == theirs.decide(1, pairs)


def test_asked_twice_it_gives_the_same_answer() -> None:
    random = np.random.default_rng(1)
    rounds = [[(f"t{i:04d}", float(random.normal())) for i in range(20)] for _ in range(3)]
    once, twice = (Median(1, 3, maximize=True) for _ in range(2))
    num_stopped = []
    for epoch, scores in enumerate(rounds, 1):
        answer = once.decide(epoch, scores)
        num_stopped.append(len(answer))
        assert twice.decide(epoch, scores[:8]) == answer & {trial_id for trial_id, _ in scores[:8]}
        assert twice.decide(epoch, scores) == answer
        assert once.decide(epoch, scores) == answer
    assert 0 < num_stopped[0] < 20


def test_another_attempt_is_judged_by_its_own_scores() -> None:
    rule, without = (Median(1, 2, maximize=True) for _ in range(2))
    for epoch in (1, 2, 3):
        for name, score in (("b", 1.0), ("c", 2.0), ("a", 0.5 if epoch == 1 else 9.0)):
            rule.decide(epoch, [(name, score)])
            if name != "a" or epoch == 1:
                without.decide(epoch, [(name, score)])
    for epoch in (1, 2, 3):
        for name in ("a", "d"):
            assert rule.decide(epoch, [(name, 0.5)]) == without.decide(epoch, [(name, 0.5)]) == {name}


def test_a_best_score_of_long_ago_counts() -> None:
    rule = Median(1, 1, maximize=True)
    assert rule.decide(1, [("early", 5.0), ("steady", 1.0)]) == {"steady"}
    assert rule.decide(2, [("steady", 1.0), ("early", 0.0)]) == frozenset()
    fresh = Median(2, 1, maximize=True)
    assert fresh.decide(1, [("early", 5.0), ("steady", 1.0)]) == frozenset()
    assert fresh.decide(2, [("early", 0.0), ("steady", 1.0)]) == frozenset()
    assert fresh.decide(3, [("early", 0.0), ("steady", 1.0)]) == frozenset()


def test_forgotten_trials_leave_the_rule_as_if_they_had_not_come() -> None:
    rule, without = (Median(2, 2, maximize=True) for _ in range(2))
    for epoch in range(1, 5):
        for place in range(6):
            scores = [(f"t{place}", float((5 * place + epoch) % 7))]
            rule.decide(epoch, scores)
            if place != 3:
                without.decide(epoch, scores)
    rule.forget(["t3", "never there"])
    for epoch in range(1, 5):
        again = [("t3", 2.0 * epoch), ("t6", 0.0)]
        assert rule.decide(epoch, again) == without.decide(epoch, again)
