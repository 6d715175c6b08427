"""Which device each rank of a production training has, as its workers tell each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.train import rank_group
from raygpu.engines.train.rank_group import _placed, failures_reported


@pytest.mark.parametrize(
    ("told", "count", "placed"),
    [
        ([0, 1], 2, [0, 1]),
        ([1, None], 2, [1, 0]),
        ([None, 0, None], 4, [1, 0, 2]),
        ([0, 0, None], 1, [0, 0, 0]),
        ([None, None], 2, [0, 1]),
    ],
)
def test_a_node_that_joined_later_takes_the_place_of_a_lost_one(
    told: list[int | None], count: int, placed: list[int]
) -> None:
    assert _placed(told, count) == placed


@pytest.mark.parametrize("error", [ValueError("too long"), SystemExit("too long")])
def test_what_the_user_s_code_raises_is_told_an_exit_too(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    told: list[Any] = []
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(rank_group.ray.train, "get_context", lambda: context)
    monkeypatch.setattr(rank_group.ray, "get", lambda answer: answer)
    mailbox = SimpleNamespace(tell=SimpleNamespace(remote=told.append))
    with pytest.raises(type(error)), failures_reported(mailbox):
        raise error
    assert [failed.error.splitlines()[-1] for failed in told] == [f"{type(error).__name__}: too long"]
