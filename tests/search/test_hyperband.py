from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray import cloudpickle
from ray.tune.schedulers import TrialScheduler
from ray.tune.schedulers.async_hyperband import _Bracket

from raygpu.search.halving import rungs
from raygpu.search.hyperband import CHUNK, Hyperband, bracket_of, bracket_shares, first_rungs, mean_epochs, stops
from raygpu.search.trials import Trial

REDUCTIONS = st.sampled_from([2.0, 3.0, 4.0, 1.5])


@given(st.integers(1, 4), REDUCTIONS, st.integers(1, 100))
def test_the_brackets_are_those_of_the_paper(grace: int, reduction: float, epochs: int) -> None:
    """Algorithm 1 of Li et al.: bracket s starts with ceil((s_max + 1) / (s + 1) x eta^s) trials, and costs as much as
    the others."""
    first = first_rungs(grace, reduction, epochs)
    assert [math.ceil(rung - 1e-9) for rung in first] == rungs(grace, reduction, epochs)
    s_max = len(first)
    shares = bracket_shares(s_max, reduction)
    assert len(shares) == s_max + 1
    paper = [(s_max + 1) / (s + 1) * reduction**s for s in range(s_max, -1, -1)]
    assert shares == pytest.approx([n / sum(paper) for n in paper])
    assert sum(bracket_shares(s_max, reduction, brackets=2)) == pytest.approx(1)


@given(st.integers(1, 5), REDUCTIONS, st.integers(1, 300))
def test_the_first_trials_are_divided_by_the_shares(num_rungs: int, reduction: float, count: int) -> None:
    shares = bracket_shares(num_rungs, reduction)
    counts = Counter(bracket_of(index, shares) for index in range(count))
    assert all(abs(counts[bracket] - share * count) < 1.5 for bracket, share in enumerate(shares))


def test_large_sweeps_go_on_with_the_counts_of_their_first_trials() -> None:
    shares = bracket_shares(3, 3.0)
    counts = Counter(bracket_of(index, shares) for index in range(2 * CHUNK + 100))
    assert all(abs(counts[own] - share * (2 * CHUNK + 100)) < 1.5 for own, share in enumerate(shares))


@pytest.mark.parametrize("maximize", [True, False])
@pytest.mark.parametrize(("grace", "reduction"), [(1, 3), (2, 2), (1, 4)])
def test_each_bracket_decides_as_ray_tunes_asynchronous_hyperband(grace: int, reduction: float, maximize: bool) -> None:
    epochs, names = 20, [Trial.name(i) for i in range(60)]
    random = np.random.default_rng(0)
    ours = Hyperband(grace, reduction, epochs, maximize=maximize)
    theirs = [_Bracket(grace, epochs, reduction, own, stop_last_trials=False) for own in range(len(ours.shares))]
    done = dict.fromkeys(names, 0)
    stopped_in: Counter[int] = Counter()
    while done:
        name = str(random.choice(list(done)))
        done[name] += 1
        score = float(random.normal())
        stopped = ours.decide(done[name], [(name, score)])
        bracket = theirs[ours.bracket(name)]
        action = bracket.on_result(_Named(name), done[name], score if maximize else -score)
        assert bool(stopped) == (action == TrialScheduler.STOP)
        stopped_in[ours.bracket(name)] += len(stopped)
        if stopped or done[name] == epochs - 1:
            del done[name]
    assert stopped_in[len(theirs) - 1] == 0, "the last bracket stops no trial"
    assert stopped_in[0] > 0
    assert stopped_in[1] > 0


class _Named:
    def __init__(self, name: str) -> None:
        self.trial_id = name


def test_repeats_of_a_set_share_its_bracket() -> None:
    rule = Hyperband(1, 3, 30, maximize=True)
    assert {rule.bracket(Trial.name(i)) for i in range(100)} == set(range(len(rule.shares)))
    for index in range(100):
        assert rule.bracket(Trial.repeat_name(Trial.name(index), 3)) == rule.bracket(Trial.name(index))


def test_forgotten_trials_and_a_stop_in_between_leave_no_trace() -> None:
    scores = [(Trial.name(i), float((7 * i) % 11)) for i in range(30)]
    rule, without = (Hyperband(1, 3, 9, maximize=True) for _ in range(2))
    rule.decide(1, scores)
    rule.forget([name for name, _ in scores[20:]])
    without.decide(1, scores[:20])
    again = cloudpickle.loads(cloudpickle.dumps(rule))
    assert again.decide(1, scores[20:]) == without.decide(1, scores[20:])
    assert again.decide(1, scores) == without.decide(1, scores)


def mean_of_halving(grace: float, reduction: float, epochs: int) -> float:
    """Mean epochs of a trial, if one in `reduction` survives each rung."""
    bounds = [0, *rungs(grace, reduction, epochs), epochs]
    return sum((end - start) / reduction**k for k, (start, end) in enumerate(itertools.pairwise(bounds)))


@given(st.integers(1, 3), REDUCTIONS, st.integers(2, 60), st.integers(1, 6))
def test_the_expected_epochs_are_those_of_the_brackets(
    grace: int, reduction: float, epochs: int, brackets: int
) -> None:
    first = first_rungs(grace, reduction, epochs)
    shares = bracket_shares(len(first), reduction, brackets)
    own = [mean_of_halving(rung, reduction, epochs) for rung in [*first, float(epochs)]]
    expected = sum(share * mean for share, mean in zip(shares, own, strict=False))
    assert mean_epochs(stops(grace, reduction, epochs, brackets), epochs) == pytest.approx(expected)
    assert all(0 < part < 1 for part in stops(grace, reduction, epochs, brackets).values())
    assert mean_epochs(stops(grace, reduction, epochs, 1), epochs) == pytest.approx(
        mean_of_halving(grace, reduction, epochs)
    )
