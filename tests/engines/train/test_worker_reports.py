"""Turns of workers that ask one after the other: all ranks see the same ones."""

from __future__ import annotations

from raygpu.engines.train.worker_reports import TurnMailbox


def test_a_turn_lasts_until_the_next_one() -> None:
    mailbox = TurnMailbox()
    assert mailbox.turn(0) == ""
    mailbox.begin_turn((3, 1))
    assert (mailbox.turn(0), mailbox.turn_wish(0)) == ((3, 1), "")
    mailbox.begin_turn((2, 2))
    assert (mailbox.turn_wish(0), mailbox.turn(1), mailbox.turn_wish(1)) == ("stop", (2, 2), "")


def test_a_turn_that_one_rank_has_begun_is_begun_by_all() -> None:
    mailbox = TurnMailbox()
    mailbox.begin_turn((3, 1))
    assert mailbox.turn(0) == (3, 1)
    mailbox.stop()
    assert (mailbox.turn(0), mailbox.turn_wish(0)) == ((3, 1), "stop"), "another rank waits in the first step"
    assert mailbox.turn(1) == "stop"
