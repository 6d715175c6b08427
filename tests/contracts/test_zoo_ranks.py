"""The zoo over ranks of unequal shares: equal to the trial alone, or raygpu says why it cannot be."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache

import pytest

from raygpu.search.hyperparameters import Hyperparameters
from tests.contracts.zoo import ZOO, cases
from tests.contracts.zoo.check import Outcome, alone, difference, distance
from tests.contracts.zoo.ranks import Part, on_one, on_several

TRAINED = [name for name, entry in ZOO.items() if entry.alone is None]


@cache
def wanted(name: str) -> Outcome:
    entry = ZOO[name]()
    return alone(entry, entry.data(), entry.trials()[1], entry.dtype)


def judge(name: str, ranks: Sequence[Part]) -> None:
    """Fails where the ranks' training is neither the one of the trial alone nor refused by name."""
    entry = ZOO[name]
    errors, notes = [rank.error for rank in ranks if rank.error], ranks[0].notes
    assert entry.production or not [*errors, *notes], f"has to be equal, but: {[*errors, *notes]}"
    if errors:
        assert all(re.search(entry.production, rank.error) for rank in ranks), f"{errors}, not {entry.production!r}"
        return
    if entry.production and any(re.search(entry.production, note) for note in notes):
        return
    state, metrics = ranks[0].outcome
    for rank in ranks:
        for key, value in rank.outcome[0].items():
            if key in dict(ZOO[name]().model(Hyperparameters(entry.own[1])).named_parameters()):
                assert distance(value, state[key]) == 0, f"the ranks' {key} differ"
    if entry.random and len(ranks) > 1:
        assert all(bool(value.isfinite().all()) for value in state.values())
        assert all(math.isfinite(value) for each in metrics for value in each.values())
        return
    differs = difference(ranks[0].outcome, wanted(name), entry.tolerance)
    assert not differs, f"{differs}, and no word but {notes}"


@pytest.mark.parametrize("name", cases("test_one_rank", TRAINED))
def test_one_rank(name: str) -> None:
    """In two parts of each batch."""
    judge(name, on_one(name))


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def several(request: pytest.FixtureRequest) -> dict[str, list[Part]]:
    """All entries that are asked for, one after the other, on ranks that are started once."""
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    return on_several(request.param, [name for name in TRAINED if name in asked])


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("test_several_ranks", TRAINED))
def test_several_ranks(name: str, several: dict[str, list[Part]]) -> None:
    """Of unequal shares, each of them in two parts."""
    judge(name, several[name])
