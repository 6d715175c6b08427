"""Which device each rank of a production training has, as its workers tell each other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.train import rank_group
from raygpu.engines.train.rank_group import _is_lost_peer, _placed, failures_reported


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


@pytest.mark.parametrize("error", [ValueError("too long"), SystemExit("too long"), KeyboardInterrupt("too long")])
def test_what_the_user_s_code_raises_is_told_an_exit_too(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    told: list[Any] = []
    context = SimpleNamespace(get_world_rank=lambda: 0, get_world_size=lambda: 1)
    monkeypatch.setattr(rank_group.ray.train, "get_context", lambda: context)
    monkeypatch.setattr(rank_group.ray, "get", lambda answer: answer)
    mailbox = SimpleNamespace(tell=SimpleNamespace(remote=told.append))
    with pytest.raises(type(error)), failures_reported(mailbox):
        raise error
    assert [failed.error.splitlines()[-1] for failed in told] == [f"{type(error).__name__}: too long"]


CLOSED = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:5120"
UnavailableError = type("UnavailableError", (Exception,), {})
OpError = type("OpError", (Exception,), {})


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (RuntimeError(CLOSED), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:3356, remote process exited"), True),
        (ConnectionResetError(104, "Connection reset by peer"), True),
        (UnavailableError("failed to connect to all addresses"), True),
        (OpError("Collective ops is aborted by: Socket closed"), True),
        (ValueError("no such table in /data/igloo/points.csv"), False),
        (RuntimeError("no such table in /data/igloo/points.csv"), False),
        (FileNotFoundError(2, "No such file or directory", "/data/gloo/points.csv"), False),
        (ValueError("read NCCL; allowed: gloo"), False),
    ],
)
def test_an_error_of_the_user_s_code_is_no_lost_peer(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, is_lost: bool
) -> None:
    context = SimpleNamespace(get_world_size=lambda: 2)
    monkeypatch.setattr(rank_group.ray.train, "get_context", lambda: context)
    assert _is_lost_peer(error) == is_lost


class TrainError(Exception):
    """An error of the user's code."""


def raised_again(error: Exception, how: str) -> BaseException:
    """The error of code that handles another one by raising its own."""
    try:
        try:
            raise error
        except Exception as caught:
            if how == "from":
                raise TrainError("the step has failed") from caught
            if how == "from None":
                raise TrainError("the step has failed") from None
            raise TrainError("the step has failed")  # noqa: B904
    except TrainError as raised:
        return raised


@pytest.mark.parametrize("how", ["from", "from None", "while handling"])
@pytest.mark.parametrize(("error", "is_lost"), [(RuntimeError(CLOSED), True), (ValueError("read NCCL"), False)])
def test_a_lost_peer_is_known_behind_an_error_of_the_user_s_own_type(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_lost: bool, how: str
) -> None:
    context = SimpleNamespace(get_world_size=lambda: 2)
    monkeypatch.setattr(rank_group.ray.train, "get_context", lambda: context)
    assert _is_lost_peer(raised_again(error, how)) == is_lost


def test_errors_that_are_each_other_s_cause_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(get_world_size=lambda: 2)
    monkeypatch.setattr(rank_group.ray.train, "get_context", lambda: context)
    error, other = TrainError(), TrainError()
    error.__cause__, other.__cause__ = other, error
    assert not _is_lost_peer(error)
