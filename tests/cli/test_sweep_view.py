from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from raygpu.cli.formatting import duration
from raygpu.cli.sweep_view import SweepConsole, plain
from raygpu.records.trial_records import Device, Snapshot
from raygpu.search.trials import Standing, Trial, TrialRecord

BEST = TrialRecord(
    Trial("t0003", 7, {"lr": 0.123456, "path": "x" * 60}), "finished", 0.975, 20, standing=Standing(0.975, 0.98, 12, 20)
)
STATE = Snapshot(
    elapsed_s=65, num_trials=8, running=2, finished=3, stopped=1, failed=1, best=BEST,
    samples_per_s={0: 12345.6, 1: None}, time_left_s=39.6,
)  # fmt: skip


def test_plain_lines_say_what_the_table_says() -> None:
    assert plain(STATE) == (
        "5/8 trials | 2 running | 1 stopped early | 1 failed | best 0.975 (t0003 at epoch 20) | gpu 0: 12,346 samples/s"
        " | 1 min 5 s, about 40 s left"
    )
    assert plain(replace(STATE, time_left_s=None, best=None)).endswith("time left not known yet")


def test_a_terminal_has_a_live_table_and_others_have_lines() -> None:
    stream = io.StringIO()
    console = SweepConsole(stream=stream)
    console.console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    console.start([Device(0, "node", "0", "NVIDIA T4"), Device(1, "node", "1", "NVIDIA [L4]")], lambda: STATE)
    console.update(STATE)
    console.stop(replace(STATE, finished=6, running=0, time_left_s=0.0))
    shown = stream.getvalue()
    for text in (
        "5/8",
        "8/8",
        "2 running",
        "1 failed",
        "0.975",
        "NVIDIA T4   12,346 samples/s",
        "NVIDIA [L4]",
        "all done",
    ):
        assert text in shown
    lines = io.StringIO()
    quiet = SweepConsole(stream=lines)
    quiet.start([], lambda: STATE)
    quiet.stop(STATE)
    assert lines.getvalue() == plain(STATE) + "\n"


def test_trouble_is_said_once() -> None:
    stream = io.StringIO()
    console = SweepConsole(stream=stream)
    console.start([], lambda: STATE)
    for _ in range(3):
        console.update(STATE, "no answer from the store.")
    assert stream.getvalue().count("no answer from the store.") == 1


def test_the_best_trials_are_not_cut() -> None:
    stream = io.StringIO()
    SweepConsole(stream=stream).best("accuracy", [BEST, replace(BEST, score=0.5)])
    header, first, second = stream.getvalue().splitlines()
    assert header.split() == ["trial", "accuracy", "(last", "epoch)", "best", "epoch", "epochs", "lr", "path"]
    assert first.split() == ["t0003", "0.975", "12", "20", "0.1235", "x" * 24 + "\N{HORIZONTAL ELLIPSIS}"]
    assert second.index("0.5") > first.index("t0003")


def test_it_is_said_of_which_epoch_the_best_score_is_and_whether_it_may_change() -> None:
    running = replace(BEST, status="running")
    assert "best 0.975 (t0003 at epoch 20, which goes on)" in plain(replace(STATE, best=running))
    by_best = replace(BEST, which="best", score=0.98)
    assert "best 0.98 (t0003 at epoch 12)" in plain(replace(STATE, best=by_best))
    stream = io.StringIO()
    SweepConsole(stream=stream).best("accuracy", [by_best])
    assert "accuracy (best epoch)" in stream.getvalue()


def test_diverged_trials_are_counted_by_name() -> None:
    assert "6/8 trials | 2 running | 1 stopped early | 1 diverged" in plain(replace(STATE, diverged=1))
    stream = io.StringIO()
    console = SweepConsole(stream=stream)
    console.console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    console.start([], lambda: replace(STATE, diverged=1))
    console.stop(replace(STATE, diverged=1))
    assert "1 diverged" in stream.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7800, "2 h 10 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
