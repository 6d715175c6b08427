from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle

from raygpu.search.halving import Halving
from raygpu.search.hyperband import Hyperband
from raygpu.search.median import Median
from raygpu.search.patience import Patience, WithPatience, reasons


def stopped_at(scores: list[float], patience: Patience) -> int | None:
    """Return the epoch after which a trial with these scores stops; None if it does not."""
    for epoch, score in enumerate(scores, start=1):
        if patience.decide(epoch, [("t0000", score)]):
            return epoch
    return None


@pytest.mark.parametrize(
    ("scores", "patience", "min_delta", "grace", "expected"),
    [
        ([1, 2, 3, 3, 3, 3], 3, 0.0, 1, 6),
        ([1, 2, 3, 4, 5, 6], 1, 0.0, 1, None),
        ([3, 2, 1], 2, 0.0, 1, 3),
        ([3, 2, 1, 0, 0], 2, 0.0, 5, 5),
        ([1, 1.05, 1.1, 1.15], 2, 0.2, 1, 3),
        ([1, 1.05, 1.3, 1.35, 1.4], 2, 0.2, 1, 5),
    ],
)
def test_when_a_trial_stops(
    scores: list[float], patience: int, min_delta: float, grace: int, expected: int | None
) -> None:
    assert stopped_at(scores, Patience(patience, min_delta, grace, maximize=True)) == expected
    negated = [-score for score in scores]
    assert stopped_at(negated, Patience(patience, min_delta, grace, maximize=False)) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(1, 6), st.integers(0, 2))
def test_it_is_keras_early_stopping(scores: list[int], patience: int, min_delta: int) -> None:
    """As keras.callbacks.EarlyStopping counts: `wait` epochs since the best."""
    best, wait, expected = -math.inf, 0, None
    for epoch, score in enumerate(scores, start=1):
        wait += 1
        if score - min_delta > best:
            best, wait = score, 0
        elif wait >= patience:
            expected = epoch
            break
    assert stopped_at([float(score) for score in scores], Patience(patience, min_delta, 1, maximize=True)) == expected


def test_asked_again_after_a_lost_worker_it_gives_the_same_answers() -> None:
    rule = Patience(2, 0.0, 1, maximize=True)
    scores = [1.0, 2.0, 1.5, 1.5, 5.0]
    answers = [rule.decide(epoch, [("t0000", score)]) for epoch, score in enumerate(scores, start=1)]
    assert list(map(bool, answers)) == [False, False, False, True, False]
    again = [rule.decide(epoch, [("t0000", score)]) for epoch, score in enumerate(scores, start=1)]
    assert again == answers


def test_another_attempt_is_judged_by_its_own_scores() -> None:
    rule = Patience(2, 0.0, 1, maximize=True)
    for epoch, score in enumerate([1.0, 9.0, 9.0], start=1):
        assert not rule.decide(epoch, [("t0000", score)])
    for epoch, score in enumerate([1.0, 2.0, 3.0, 4.0], start=1):
        assert not rule.decide(epoch, [("t0000", score)])


def test_its_state_does_not_grow_with_the_epochs() -> None:
    sizes = []
    rule = Patience(5000, 0.0, 1, maximize=True)
    for epoch in range(1, 1001):
        rule.decide(epoch, [("t0000", -float(epoch))])
        sizes.append(len(cloudpickle.dumps(rule)))
    assert sizes[-1] == sizes[0]


def test_trials_are_not_compared_and_forgotten_ones_begin_anew() -> None:
    rule = Patience(1, 0.0, 1, maximize=True)
    assert rule.decide(1, [("a", 1.0), ("b", 0.0)]) == frozenset()
    assert rule.decide(2, [("a", 1.0), ("b", 0.5)]) == {"a"}
    rule.forget(["a"])
    assert rule.decide(1, [("a", 0.5)]) == frozenset()
    assert cloudpickle.loads(cloudpickle.dumps(rule)).decide(3, [("b", 0.5)]) == {"b"}


@pytest.mark.parametrize(("patience", "expected"), [(3, 11), (5, 11), (6, 16), (10, 16)])
def test_a_trial_stops_only_at_an_epoch_that_has_the_metric(patience: int, expected: int) -> None:
    """The metric is reported at epochs 1, 6, 11, 16, and is best at epoch 6."""
    values, score, stopped = {1: 1.0, 6: 2.0, 11: 1.5, 16: 1.5}, math.nan, []
    rule = WithPatience(None, Patience(patience, 0.0, 1, maximize=True))
    for epoch in range(1, 17):
        score = values.get(epoch, score)
        if reasons(rule, epoch, [("t0000", score)], () if epoch in values else ["t0000"]):
            stopped.append(epoch)
    assert stopped[0] == expected


def test_the_median_rule_leaves_out_what_was_not_scored_in_an_epoch() -> None:
    rules = [Median(1, 1, maximize=True) for _ in range(2)]
    scores = {"t0000": 1.0, "t0001": 0.5, "t0002": 0.7}
    for name in ("t0000", "t0001"):
        assert reasons(rules[0], 2, [(name, scores[name])], [name]) == {}
        assert rules[1].decide(1, [(name, scores[name])]) == ({"t0001"} if name == "t0001" else set())
    assert reasons(rules[0], 2, [("t0002", 0.7)]) == {}, "it is the first one with a score"


def test_at_a_rung_the_last_score_counts() -> None:
    for rule in (Halving(2, 2, 8, maximize=True), Hyperband(2, 2, 8, maximize=True, brackets=1)):
        both = WithPatience(rule, Patience(1, 0.0, 1, maximize=True))
        entries = [("t0000", 2.0), ("t0001", 1.0)]
        assert reasons(rule, 2, entries, ["t0001"]) == reasons(both, 2, entries, ["t0001"]) == {"t0001": None}


def test_beside_halving_the_reason_tells_which_one_stopped_a_trial() -> None:
    """Halving's rung is epoch 2; there its own reason counts."""
    rule = WithPatience(Halving(2, 2, 8, maximize=True), Patience(1, 0.0, 1, maximize=True))
    assert reasons(rule, 1, [("good", 2.0), ("bad", 1.0), ("flat", 3.0)]) == {}
    assert reasons(rule, 2, [("good", 4.0), ("bad", 1.5), ("flat", 3.0)]) == {"bad": None, "flat": "patience"}
    assert reasons(rule, 3, [("good", 4.0)]) == {"good": "patience"}
    rule.forget(["good"])
    assert rule.decide(3, [("good", 1.0)]) == frozenset()
    assert reasons(Halving(1, 2, 8, maximize=True), 1, [("a", 2.0), ("b", 1.0)]) == {"b": None}
