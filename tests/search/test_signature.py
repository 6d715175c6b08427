from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.search.signature import (
    ENOUGH_RUNS,
    MAX_MEMBERS,
    Group,
    Signature,
    Signatures,
    array_members,
    cut,
    differing,
    even,
    representatives,
)
from raygpu.search.trials import Trial


def trial(index: int, **hyperparameters: Any) -> Trial:
    return Trial(Trial.name(index), index, hyperparameters)


class Reader:
    """Reads `hidden`, and `dropout` where `deep` says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, asked: Trial) -> frozenset[str]:
        self.asked.append(asked.trial_id)
        hp = asked.hyperparameters
        return frozenset({"hidden", "deep"} | ({"dropout"} if hp.get("deep") else set()))


def test_code_runs_once_for_each_signature() -> None:
    reader = Reader()
    signatures = Signatures(reader)
    trials = [
        trial(0, hidden=8, lr=0.1),
        trial(1, hidden=8, lr=0.2),
        trial(2, hidden=16, lr=0.1),
        trial(3, hidden=8, deep=True, dropout=0.1),
        trial(4, hidden=8, deep=True, dropout=0.2),
        trial(5, hidden=8, deep=True, dropout=0.1, lr=0.5),
        trial(6, hidden=8, dropout=0.3),
        trial(7, hidden=16, lr=0.3),
    ]
    found = [*signatures.of_each(trials)]
    assert reader.asked == ["t0000", "t0002", "t0003", "t0004"]
    places = {signature: [i for i, other in enumerate(found) if other == signature] for signature in found}
    assert list(places.values()) == [[0, 1, 6], [2, 7], [3, 5], [4]]
    assert [*signatures.of_each(trials)] == found
    assert len(reader.asked) == 4


def test_absent_is_not_a_value() -> None:
    signatures = Signatures(lambda one: frozenset({"hidden", "deep"}))
    own: list[dict[str, Any]] = [{}, {"deep": None}, {"deep": "None"}]
    absent, none, text = signatures.of_each([trial(i, hidden=8, **more) for i, more in enumerate(own)])
    assert len({absent, none, text}) == 3
    assert str(absent) == "hidden=8"
    assert str(none) == "deep=None hidden=8"
    assert str(Signature(())) == ""


def test_values_of_equal_numbers_and_different_kind_differ() -> None:
    signatures = Signatures(lambda one: frozenset({"x"}))
    assert len({*signatures.of_each([trial(i, x=x) for i, x in enumerate([1, 1.0, True, "1"])])}) == 4


def test_what_the_reader_and_the_check_raise_is_that_trial_s() -> None:
    def read(one: Trial) -> frozenset[str]:
        raise ValueError(one.trial_id)

    def check(one: Trial) -> None:
        if one.seed == 4:
            raise TypeError(one.trial_id)

    signatures = Signatures(read, check)
    for _ in range(2):
        found = signatures.of_each([trial(3, hidden=8), trial(4, hidden=8)])
        assert [repr(error) for error in found] == ["ValueError('t0003')", "TypeError('t0004')"]


def test_code_does_not_run_for_every_trial_that_is_alone_with_a_value() -> None:
    reader = Reader()
    trials = [trial(i, hidden=i + 0.5, lr=0.1) for i in range(ENOUGH_RUNS + 30)]
    trials += [trial(100 + i, hidden=8, lr=0.1 * i) for i in range(3)]
    found = [*Signatures(reader).of_each(trials)]
    assert reader.asked == [*(Trial.name(i) for i in range(ENOUGH_RUNS)), "t0100"]
    assert len(set(found)) == ENOUGH_RUNS + 31
    assert found[-1] == found[-2] == found[-3]


values = st.one_of(st.integers(0, 2), st.sampled_from([0.1, 0.2, "a", "b"]))
hyperparameters = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), values, max_size=4)


@given(st.lists(hyperparameters, min_size=1, max_size=12), st.integers(4, 12))
def test_representatives_differ_in_every_name_that_varies(found: list[dict[str, Any]], most: int) -> None:
    trials = [trial(i, hidden=8, **hp) for i, hp in enumerate(found)]
    chosen = representatives(trials, Signature((("hidden", "8"),)), most)
    assert chosen[0] is trials[0]
    assert len(chosen) == min(len(chosen), most, len(trials))
    assert len({one.trial_id for one in chosen}) == len(chosen)
    assert len(chosen) >= min(2, len(trials))
    assert varying(chosen) == varying(trials)


def varying(trials: list[Trial]) -> set[str]:
    names = {name for one in trials for name in one.hyperparameters}

    def text(hp: Mapping[str, Any], name: str) -> str:
        return repr(hp[name]) if name in hp else "absent"

    return {name for name in names if len({text(one.hyperparameters, name) for one in trials}) > 1}


def test_no_more_representatives_than_asked_for() -> None:
    trials = [trial(0, a=0, b=0, c=0), trial(1, a=1, b=0, c=0), trial(2, a=0, b=1, c=0), trial(3, a=0, b=0, c=1)]
    assert len(representatives(trials, Signature(()), most=4)) == 4
    assert len(representatives(trials, Signature(()), most=2)) == 2
    assert representatives(trials, Signature((("b", "0"), ("c", "0"))), most=4) == trials[:2]


def test_names_in_whose_values_groups_differ() -> None:
    groups = [Group(Signature((("a", "1"), ("b", str(i)), ("c", str(i // 2))))) for i in range(4)]
    assert differing(groups) == ["b", "c"]
    assert differing(groups[:1]) == []


@given(st.integers(0, 5000), st.integers(1, 300))
def test_even_parts(count: int, num_parts: int) -> None:
    parts = even(count, num_parts)
    assert [place for part in parts for place in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert 0 not in sizes
    assert len(parts) == min(count, num_parts)
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


def test_arrays_of_limited_width_are_given_out_in_turns() -> None:
    groups = [
        Group(Signature((("hidden", str(hidden)),)), [trial(start + i, hidden=hidden) for i in range(count)])
        for hidden, start, count in ((8, 0, 5), (16, 10, 2), (32, 20, 4))
    ]
    widest_first = [array[0] for array in array_members(groups, slots=1)]
    assert widest_first == ["t0000", "t0020", "t0010"]
    limited = array_members(groups, slots=1, members=2)
    assert [array[0] for array in limited] == ["t0000", "t0010", "t0020", "t0002", "t0022", "t0003"]
    assert sorted(name for array in limited for name in array) == sorted(
        one.trial_id for g in groups for one in g.trials
    )


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=20), st.integers(1, 64))
def test_cut_places_every_trial_once(counts: list[int], slots: int) -> None:
    groups = {Signature((("place", str(i)),)): count for i, count in enumerate(counts)}
    arrays = cut(groups, slots)
    assert set(arrays) == set(groups)
    for signature, count in groups.items():
        sizes = [len(part) for part in even(count, arrays[signature])]
        assert sum(sizes) == count
        assert len(sizes) == arrays[signature] >= 1
        assert 1 <= min(sizes) <= max(sizes) <= MAX_MEMBERS


@given(st.integers(1, 1000), st.integers(1, 64))
def test_one_group_fills_most_places(count: int, slots: int) -> None:
    """As far as it has trials for them; not more arrays than slots."""
    (arrays,) = cut({Signature(()): count}, slots).values()
    assert min(count, slots) / 2 <= arrays <= slots


@pytest.mark.parametrize(("count", "slots"), [(17, 16), (505, 18), (33, 16)])
def test_one_group_fills_all_places(count: int, slots: int) -> None:
    (arrays,) = cut({Signature(()): count}, slots).values()
    assert arrays == slots


def test_larger_groups_are_cut_into_more_arrays() -> None:
    groups = {Signature((("hidden", "8"),)): 90, Signature((("hidden", "16"),)): 8, Signature((("hidden", "4"),)): 2}
    assert list(cut(groups, 10).values()) == [8, 1, 1]
    assert list(cut(groups, 1).values()) == [1, 1, 1]
    assert list(cut({Signature(()): 5000}, 2).values()) == [5]
    assert cut({}, 4) == {}
