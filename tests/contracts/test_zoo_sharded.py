"""The zoo over ranks that share one model: equal to the trial alone, or raygpu says why it cannot be."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.contracts.test_zoo_ranks import TRAINED, judge
from tests.contracts.zoo import cases
from tests.contracts.zoo.ranks import Part, on_several

NAMED = (
    "sharding|sharded|held outside the modules of the model|other ways through the model"
    "|gradient of the model by itself"
)
"""What a refusal says that whole models do not need."""


def judge_sharded(name: str, ranks: Sequence[Part]) -> None:
    """Fails where a refusal does not name its cause, or the training is neither equal nor refused by name."""
    errors = [rank.error for rank in ranks if rank.error]
    if len(errors) == len(ranks) and all(re.search(NAMED, error) for error in errors):
        return
    for rank in ranks:
        rank.notes = [note for note in rank.notes if not note.startswith("sharded: the gradient noise scale")]
    if not errors:
        for rank in ranks[1:]:
            rank.outcome = ranks[0].outcome  # which has the whole state
    judge(name, ranks)


@pytest.fixture(scope="module")
def several(request: pytest.FixtureRequest) -> dict[str, list[Part]]:
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    return on_several(2, [name for name in TRAINED if name in asked], sharded=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", cases("test_sharded_ranks", TRAINED))
def test_sharded_ranks(name: str, several: dict[str, list[Part]]) -> None:
    """Of unequal shares, each of them in two parts."""
    judge_sharded(name, several[name])
