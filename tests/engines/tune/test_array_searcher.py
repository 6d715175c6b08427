"""What becomes of arrays that fail, without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raygpu.engines.tune.array_callback import LiveArrays
from raygpu.engines.tune.array_searcher import ArraySearcher
from raygpu.engines.tune.device_slots import DeviceSlots
from raygpu.engines.tune.trial_shares import Shares
from raygpu.planning.gpu_shares import Choice, FusedPlan, Node, Share, plan
from raygpu.records.trial_records import Records
from raygpu.search.samplers import DrawnTrials
from raygpu.search.signature import Group, Signature
from raygpu.search.trials import Scoring, Trial
from raygpu.training.fused.groups import Fuser


class OneGroup(Fuser):
    """All trials are of one signature."""

    def __init__(self) -> None:
        pass

    def groups(self, trials: Any) -> list[Group]:
        return [Group(Signature(()), list(trials))] if trials else []


def outcome(count: int, bad: set[str]) -> list[tuple[int, bool]]:
    """The orders of a sweep whose arrays fail if they have a bad member: how many trials, and whether fused."""
    trials = [Trial(Trial.name(i), i, {}) for i in range(count)]
    records = Records(count, Scoring("accuracy", True), [], 1)
    one_gpu = plan([Node(8, 1, 100)], {"": Choice(Share(), "")}, count)
    shares = Shares(one_gpu, lambda trial: Signature(()))
    folder = SimpleNamespace(tune=Path())
    context: Any = SimpleNamespace(records=records, writer=None, cluster=None, folder=folder, say=print, arrays_s={})
    live: Any = LiveArrays(context, shares, OneGroup(), None)
    searcher = ArraySearcher(DrawnTrials(trials), live, FusedPlan(one_gpu, one_gpu), DeviceSlots(one_gpu), drawn=True)
    orders = []
    while isinstance(given := searcher.suggest(name := f"tune-{len(orders)}"), dict):
        names = given["trial_ids"]
        orders.append((len(names), given["fused"]))
        failed = given["fused"] and bad & set(names)
        for trial_id in names:
            if trial_id not in records.by_id:
                records.start(live.trials[trial_id])
            if not failed:
                records.end(trial_id, "finished")
        searcher.on_trial_complete(name, {"failure": "Traceback ...\nValueError: boom" if failed else None})
    assert given == searcher.FINISHED
    assert {record.status for record in records.by_id.values()} == {"finished"}
    return orders


def test_one_bad_trial_is_found_by_halves() -> None:
    orders = outcome(64, {"t0037"})
    assert [size for size, fused in orders if not fused] == [1, 1]
    assert len(orders) == 1 + 2 * 6


def test_a_fault_of_all_is_not_halved_to_the_end() -> None:
    orders = outcome(64, {Trial.name(i) for i in range(64)})
    assert len([size for size, fused in orders if fused]) <= 16
    assert sum(size for size, fused in orders if not fused) == 64


def test_nothing_fails() -> None:
    assert outcome(5, set()) == [(5, True)]
