"""Lines on a sweep's trials, for a person who asked for details."""

from __future__ import annotations

from raygpu.engines.tune import trial_lines
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.planning.gpu_shares import Share
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial

ALONE = ArrayConfig("t0003", ("t0003",), fused=False, device="T4", share=Share(5))
NAMES = tuple(f"t{number:04d}" for number in range(9))
ARRAY = ArrayConfig("a0001", NAMES, fused=True, device="T4", share=Share())


def record(**values: object) -> TrialRecord:
    found = TrialRecord(Trial("t0003", 0, {"lr": 0.1}), "finished", 0.5, 9, scores=TrialScores(0.5, 0.75, 4, 9))
    for name, value in values.items():
        setattr(found, name, value)
    return found


def test_starts() -> None:
    assert trial_lines.began(ALONE, {"lr": 0.1, "hidden": 64}) == "t0003 begins: lr=0.1 hidden=64"
    assert trial_lines.began(ARRAY, {}) == ("array a0001 begins: t0000, t0001, t0002, t0003, t0004, t0005 and 3 more")


def test_places() -> None:
    told = trial_lines.placed(ALONE, 1, {"pid": 17, "hostname": "node-a"}, local=False)
    assert told == "t0003 runs on gpu 1, 1/5 of it, process 17 on node-a"


def test_ends() -> None:
    assert trial_lines.ended(record(), "accuracy") == ("t0003 finished after 9 epochs, accuracy 0.5 (best at epoch 4)")
    stopped = record(status="stopped", reason="halving at epoch 9")
    assert trial_lines.ended(stopped, "accuracy").startswith("t0003 stopped after 9 epochs by halving at epoch 9, ")
    failed = record(status="failed", score=None, error="Traceback\nValueError: no", scores=TrialScores())
    assert trial_lines.ended(failed, "accuracy") == "t0003 failed after 9 epochs: ValueError: no"
    assert trial_lines.ended(record(diverged=True), "accuracy").startswith("t0003 diverged after 9 epochs (best")


def test_changes() -> None:
    assert trial_lines.compacted(ARRAY, 9, NAMES[:3]) == ("array a0001: 3 of 9 trials go on: t0000, t0001, t0002")
    assert trial_lines.enlarged("t0003", "1/5", "1/4", from_checkpoint=True) == (
        "t0003 ran out of memory in 1/5 of a GPU; it is tried again in 1/4, from its last checkpoint"
    )
