"""Worker of a balance under Ray Train: it trains with one set of shares after the other, in one process."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from raygpu.engines.train.rank_group import LastAnswer, RankGroup, failures_reported
from raygpu.experiment import Splits
from raygpu.training.distributed.ranks import ParallelSettings

POLL_S = 0.02


def train_by_turns(config: dict[str, Any]) -> None:
    """Run one worker of Ray Train until the driver asks for no more turns, or a training diverges.

    config: "task", a WorkerTask; "mailbox", a TurnMailbox's handle; "splits", a reference to the data. An error of the
    user's code is reported to the mailbox before it is raised.
    """
    task, mailbox, splits = config["task"], config["mailbox"], ray.get(config["splits"])
    with failures_reported(mailbox):
        group, number = RankGroup(task, mailbox), 0
        while (shares := _next(mailbox, number)) is not None:
            parallel = replace(task.parallel, ratios=tuple(map(float, shares)))
            if not _take_turn(group, splits, parallel, LastAnswer(partial(mailbox.turn_wish.remote, number))):
                return
            number += 1


def _next(mailbox: Any, number: int) -> tuple[int, ...] | None:
    """Wait for a turn, and return its shares; None after the last one."""
    while not (shares := ray.get(mailbox.turn.remote(number))):
        time.sleep(POLL_S)
    return None if shares == "stop" else shares


def _take_turn(group: RankGroup, splits: Splits, parallel: ParallelSettings, request: LastAnswer) -> bool:
    """Train from fresh parameters until the turn is over; return False if the training diverged."""
    if parallel.compile:
        import torch

        torch.compiler.reset()  # another share would be compiled for any shape, slower than for its own
    training = group.begin(splits, parallel, request)
    try:
        group.report_start(training)
        while (progress := training.advance()) is not None:
            if progress.diverged:
                return False
            if group.ranks.rank == 0:
                group.report(progress)
            if progress.request == "stop":
                break
    finally:
        training.close()
    return True
