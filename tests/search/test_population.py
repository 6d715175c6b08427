"""A population gives the same orders whatever the order of arrival, and nobody waits for ever."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.config.population_section import PopulationSection
from raygpu.search.population import MemberScores, Orders, Population, Reached
from raygpu.search.space import parse
from raygpu.search.trial_record import Change

PARAMETERS = parse({"lr": {"loguniform": [1e-3, 1.0]}}).parameters
SECTION = PopulationSection(interval=2)


def population(count: int = 8, *, together: bool = True, groups: int = 1, **values: Any) -> Population:
    names = {f"t{i:04d}": str(i % groups) for i in range(count)}
    section = PopulationSection(interval=2, **values)
    return Population(section, PARAMETERS, names, epochs=9, seed=3, maximize=True, together=together)


def report(place: int, score: float, epoch: int = 2, **earlier: Any) -> MemberScores:
    reached = {epoch: Reached(score, {"lr": 0.1 * (place + 1)})}
    return MemberScores(f"t{place:04d}", earlier.get("reached", {}) | reached, earlier.get("decided", {}))


def played(scores: list[float], order: list[int], *, size: int = 1) -> dict[str, Change]:
    """The changes after one interval, where workers of `size` trials arrive in this order."""
    found, own = population(len(scores)), {}
    parts = [order[i : i + size] for i in range(0, len(order), size)]
    for _ in range(2):
        for part in parts:
            orders = found.exchange(2, [report(i, scores[i]) for i in part])
            own |= orders.changes if orders is not None else {}
    return own


@given(scores=st.lists(st.floats(0, 1), min_size=2, max_size=12), seed=st.integers(0, 100), size=st.integers(1, 5))
def test_the_order_of_arrival_and_the_cut_into_workers_do_not_matter(scores: list[float], seed: int, size: int) -> None:
    order = list(range(len(scores)))
    random.Random(seed).shuffle(order)
    whole = played(scores, list(range(len(scores))), size=len(scores))
    assert played(scores, order, size=size) == whole
    lowest = sorted(scores)[: math.ceil(len(scores) / 4)]
    for name, change in whole.items():
        assert scores[int(name[1:])] in lowest
        assert scores[int(change.donor[1:])] >= scores[int(name[1:])]
        assert change.donor not in whole


def test_all_wait_for_the_last_one_and_asking_again_changes_nothing() -> None:
    found = population(4)
    assert [found.exchange(2, [report(i, i)]) for i in range(3)] == [None, None, None]
    assert found.missing(2, "0") == ["t0003"]
    last = found.exchange(2, [report(3, 3.0)])
    assert last == Orders(save=("t0003",)), "the best one's parameters are needed by another worker"
    first = found.exchange(2, [report(0, 0.0)])
    assert first is not None
    assert first.changes["t0000"].donor == "t0003"
    assert found.exchange(2, [report(0, 0.5)]) == first
    assert found.donor(2, "t0003") == "coming"
    found.saved(2, ["t0003"])
    assert found.donor(2, "t0003") == "saved"
    assert found.exchange(2, [report(3, 3.0)]) == Orders()


def test_a_new_value_follows_from_the_donors_value() -> None:
    change = played([0.0, 1.0], [0, 1])["t0000"]
    assert change.values["lr"] in (pytest.approx(0.24), pytest.approx(0.16)) or 1e-3 <= change.values["lr"] <= 1.0
    assert population(2, resample=0.0).exchange(2, [report(0, 0.0), report(1, 1.0)]).changes[  # type: ignore[union-attr]
        "t0000"
    ].values["lr"] in (pytest.approx(0.24), pytest.approx(0.16))


def test_nobody_waits_for_trials_that_left() -> None:
    found = population(4)
    assert found.exchange(2, [report(0, 0.0)]) is None
    found.leave(["t0001"], ended=True)
    found.leave(["t0002"], ended=False)
    assert found.exchange(2, [report(3, 1.0)]) is not None
    late = found.exchange(2, [report(2, -1.0)])
    assert late is not None
    assert not late.changes, "the best one's parameters at that epoch are not kept"
    found.saved(2, ["t0003"])
    assert found.missing(4, "0") == ["t0000", "t0002", "t0003"], "one that reports is waited for again"


def test_where_not_all_train_at_once_nobody_waits_and_later_trials_take_from_earlier_ones() -> None:
    found = population(4, together=False)
    assert found.exchange(2, [report(0, 0.9)]) == Orders(save=("t0000",))
    found.saved(2, ["t0000"])
    second = found.exchange(2, [report(1, 0.1)])
    assert second is not None
    assert second.changes["t0001"].donor == "t0000"
    assert second.save == ()
    third = found.exchange(2, [report(2, 0.5)])
    assert third is not None
    assert not third.changes


@pytest.mark.parametrize("known", [False, True], ids=["told by the array before", "counted before the sweep"])
def test_an_array_that_follows_for_want_of_memory_takes_over_from_the_one_before(known: bool) -> None:
    found, names = population(16, together=not known), [f"t{i:04d}" for i in range(16)]
    for epoch in (2, 4):
        found.follow(names[8:])
        first = found.exchange(epoch, [report(i, 100.0 + i, epoch) for i in range(8)])
        assert first is not None
        assert set(first.save) == {"t0006", "t0007"}, "the best two, of a quarter of 16"
        found.saved(epoch, first.save)
    found.leave(names[:8], ended=True)
    for epoch in (2, 4):
        scores = [-math.inf, *range(1, 8)]
        later = found.exchange(epoch, [report(8 + i, score, epoch) for i, score in enumerate(scores)])
        assert later is not None
        assert set(later.changes) == {"t0008", "t0009", "t0010", "t0011"}, "the worst quarter of all 16"
        assert {change.donor for change in later.changes.values()} <= set(first.save)
        assert not later.ended, "a diverged trial finds somebody to take over from"


def test_populations_whose_trials_all_fit_wait_for_each_other_as_before() -> None:
    found = population(8, groups=2)
    found.follow(["t0006"])
    assert found.missing(2, "0") == []
    assert found.missing(2, "1") == ["t0001", "t0003", "t0005", "t0007"]


def test_a_trial_that_is_away_may_take_over_once_it_is_back() -> None:
    """Its worker was lost for good, or its array was divided, and the others go on."""
    found = population(4)
    found.leave(["t0000"], ended=False)
    assert [found.exchange(2, [report(i, float(i))]) for i in (1, 2)] == [None, None]
    decided = found.exchange(2, [report(3, 3.0)])
    assert decided is not None
    assert decided.save == ("t0003",)
    found.saved(2, decided.save)
    late = found.exchange(2, [report(0, -math.inf)])
    assert late is not None
    assert late.changes["t0000"].donor == "t0003"


def test_a_diverged_trial_always_takes_over_or_ends() -> None:
    scores = [math.nan, -math.inf, -math.inf, 0.1, 0.2, 0.3, 0.4, 0.5]
    orders = population(8).exchange(2, [report(i, score) for i, score in enumerate(scores)])
    assert orders is not None
    assert {"t0000", "t0001", "t0002"} <= set(orders.changes), "more than a quarter"
    alone = population(2).exchange(2, [report(0, -math.inf), report(1, -math.inf)])
    assert alone == Orders(ended=("t0000", "t0001"))


def test_trials_of_different_populations_do_not_meet() -> None:
    orders = population(4, groups=2).exchange(2, [report(i, float(i)) for i in range(4)])
    assert orders is not None
    assert {name: change.donor for name, change in orders.changes.items()} == {"t0000": "t0002", "t0001": "t0003"}


def test_reports_carry_what_an_older_state_has_lost() -> None:
    """The driver was killed: its state is older than what trials have carried out."""
    found, scores = population(4), [0.0, 1.0, 2.0, 3.0]
    orders = found.exchange(2, [report(i, score) for i, score in enumerate(scores)])
    assert orders is not None
    restored = population(4)
    known = {"reached": {2: Reached(0.0, {"lr": 0.1})}, "decided": {2: orders.changes["t0000"]}}
    assert restored.exchange(2, [report(1, 1.0)]) is None
    assert restored.exchange(4, [report(0, 9.0, 4, **known)]) is None, "the others are not there yet"
    for place in (2, 3):
        restored.exchange(2, [report(place, scores[place])])
    again = restored.exchange(2, [report(1, 1.0)])
    assert again is not None
    assert not again.changes
    pickle.loads(pickle.dumps(restored))


def test_others_are_compared_with_the_score_of_the_last_attempt() -> None:
    """t0000 was lost before the interval was decided, and reaches another score when it is trained again."""
    found = population(4)
    for place, score in ((0, 9.0), (1, 1.0), (2, 2.0)):
        assert found.exchange(2, [report(place, score)]) is None
    assert found.exchange(2, [report(0, 0.5)]) is None
    found.exchange(2, [report(3, 3.0)])
    orders = found.exchange(2, [report(0, 0.5)])
    assert orders is not None
    assert {name: change.donor for name, change in orders.changes.items()} == {"t0000": "t0003"}


def test_the_parameters_of_an_interval_are_kept_until_all_are_two_further() -> None:
    found = population(2)
    for epoch in (2, 4, 6):
        assert found.exchange(epoch, [report(0, 0.0, epoch)]) is None
        orders = found.exchange(epoch, [report(1, 1.0, epoch)])
        assert orders is not None
        assert orders.obsolete == ((2,) if epoch == 6 else ())
        found.saved(epoch, ["t0001"])
        assert found.exchange(epoch, [report(0, 0.0, epoch)]) is not None


def test_forgotten_trials_begin_anew() -> None:
    found = population(2)
    first = found.exchange(2, [report(0, 0.0), report(1, 1.0)])
    found.forget(["t0000", "t0001"])
    assert found.exchange(2, [report(0, 1.0)]) is None
    second = found.exchange(2, [report(1, 0.0)])
    assert first is not None
    assert second is not None
    assert set(first.changes) == {"t0000"} != set(second.changes)


def test_intervals_are_those_of_ray() -> None:
    assert PopulationSection(interval=5).epochs(20) == [5, 10, 15]
    assert PopulationSection(interval=5, burn_in=7).epochs(20) == [7, 12, 17]
    assert SECTION.epochs(2) == []
