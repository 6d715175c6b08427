from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ray.tune.schedulers import ASHAScheduler

from raygpu.search.halving import Halving, rungs
from tests.tune import Tune


@pytest.mark.parametrize(
    ("grace", "reduction", "epochs", "expected"),
    [
        (2, 3, 20, [2, 6, 18]),
        (1, 2, 8, [1, 2, 4]),
        (5, 3, 5, []),
        (1, 1.5, 6, [1, 2, 3, 4]),
        (1, 2.5, 20, [1, 3, 7, 16]),
        (1, 4, 17, [1, 4, 16]),
    ],
)
def test_rungs(grace: int, reduction: float, epochs: int, expected: list[int]) -> None:
    assert rungs(grace, reduction, epochs) == expected


def asha(grace: int, reduction: float, epochs: int, trial_ids: list[str], *, maximize: bool) -> Tune:
    scheduler = ASHAScheduler(grace_period=grace, reduction_factor=reduction, max_t=epochs, stop_last_trials=False)
    return Tune(scheduler, trial_ids, maximize=maximize)


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(("grace", "reduction"), [(1, 2), (2, 3), (1, 4), (1, 1.5), (3, 2.5)])
def test_decides_as_asha(grace: int, reduction: float, maximize: bool) -> None:
    """Trials report an epoch at a time in any order; those stopped report no more."""
    epochs, trial_ids = 16, [f"t{i:04d}" for i in range(40)]
    stopped_at = set()
    for seed in range(10):
        random = np.random.default_rng(seed)
        ours = Halving(grace, reduction, epochs, maximize=maximize)
        theirs = asha(grace, reduction, epochs, trial_ids, maximize=maximize)
        done = dict.fromkeys(trial_ids, 0)
        while done:
            trial_id = random.choice(list(done))
            done[trial_id] += 1
            scores = [(trial_id, float(random.normal()))]
            stopped = ours.decide(done[trial_id], scores)
            assert stopped == theirs.decide(done[trial_id], scores)
            if stopped:
                stopped_at.add(done[trial_id])
            if stopped or done[trial_id] == epochs - 1:
                del done[trial_id]
    assert stopped_at == set(rungs(grace, reduction, epochs))


@pytest.mark.parametrize("maximize", [True, False])
def test_many_at_once_are_decided_in_their_order(maximize: bool) -> None:
    trial_ids = [f"t{i:04d}" for i in range(60)]
    random = np.random.default_rng(0)
    ours, theirs = Halving(1, 3, 30, maximize=maximize), asha(1, 3, 30, trial_ids, maximize=maximize)
    left = trial_ids
    for epoch in range(1, 30):
        scores = [(trial_id, float(random.normal())) for trial_id in left]
        stopped = ours.decide(epoch, scores)
        assert stopped == theirs.decide(epoch, scores)
        left = [trial_id for trial_id in left if trial_id not in stopped]
    assert 0 < len(left) < 20


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.sampled_from([2, 3, 4, 1.5, 2.5, 5]), st.booleans())
@example(scores=[0, 3, 1], reduction=3, maximize=False)  # the third lies on the quantile, but for rounding
def test_equal_scores_are_decided_as_asha_does(scores: list[int], reduction: float, maximize: bool) -> None:
    """Ties: accuracies of a few samples are often equal."""
    pairs = [(f"t{i:04d}", score / 4) for i, score in enumerate(scores)]
    ours = Halving(1, reduction, 9, maximize=maximize)
    theirs = asha(1, reduction, 9, [trial_id for trial_id, _ in pairs], maximize=maximize)
    assert ours.decide(1, pairs) == theirs.decide(1, pairs)


def test_asked_twice_it_gives_the_same_answer() -> None:
    random = np.random.default_rng(1)
    scores = [(f"t{i:04d}", float(random.normal())) for i in range(30)]
    once, twice = (Halving(1, 3, 9, maximize=True) for _ in range(2))
    answer = once.decide(1, scores)
    assert 0 < len(answer) < 30
    assert twice.decide(1, scores[:10]) == answer & {trial_id for trial_id, _ in scores[:10]}
    assert twice.decide(1, scores) == answer
    assert once.decide(1, scores) == twice.decide(1, scores) == answer
    assert once.decide(3, scores[::-1]) == twice.decide(3, scores[::-1])


def test_another_attempt_is_judged_by_its_own_scores() -> None:
    rule = Halving(1, 3, 9, maximize=True)
    assert not rule.decide(1, [("a", 9.0)])
    assert not rule.decide(3, [("a", 9.0)])
    assert rule.decide(1, [("b", 1.0)]) == {"b"}
    assert rule.decide(1, [("a", 0.5)]) == {"a"}, "b is better"
    assert not rule.decide(3, [("c", 0.1)]), "the score that a had there before counts no more"


def test_no_one_stops_between_rungs() -> None:
    rule = Halving(2, 2, 9, maximize=True)
    scores = [("good", 1.0), ("bad", 0.0)]
    assert [bool(rule.decide(epoch, scores)) for epoch in range(1, 10)] == [
        epoch in (2, 4, 8) for epoch in range(1, 10)
    ]
    assert rule.decide(4, scores) == {"bad"}
    assert Halving(20, 2, 9, maximize=True).decide(9, scores) == frozenset()


def test_forgotten_trials_leave_the_rule_as_if_they_had_not_come() -> None:
    scores = {f"t{i}": float((7 * i) % 11) for i in range(9)}
    rule, without = (Halving(1, 3, 9, maximize=True) for _ in range(2))
    for name, score in scores.items():
        for epoch in (1, 3):
            rule.decide(epoch, [(name, score)])
    rule.forget(["t2", "t5", "never there"])
    for name, score in scores.items():
        if name not in ("t2", "t5"):
            for epoch in (1, 3):
                without.decide(epoch, [(name, score)])
    again = [("t2", 3.5), ("t5", 9.5), ("t9", 5.0)]
    assert rule.decide(1, again) == without.decide(1, again)
    assert rule.decide(3, again) == without.decide(3, again)
