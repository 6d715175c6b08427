from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from raygpu.cli.formatting import duration
from raygpu.cli.sweep_view import MOST_OF_FRONT, SweepConsole, front_lines, gpu_facts, plain
from raygpu.records.device import Device
from raygpu.records.snapshot import Leader, Snapshot
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from tests.repeat_cases import sets_of

BEST = TrialRecord(
    Trial("t0003", 7, {"lr": 0.123456, "path": "x" * 60}),
    "finished",
    0.975,
    20,
    scores=TrialScores(0.975, 0.98, 12, 20),
)
SECOND = TrialRecord(Trial("t0004", 8, {"lr": 0.01}), "running", 0.5, 2, scores=TrialScores(0.5, 0.5, 2, 2))
STATE = Snapshot(
    elapsed_s=65, num_trials=8, running=2, finished=3, stopped=1, failed=1, best=BEST,
    samples_per_s={0: 12345.6, 1: None}, time_left_s=39.6, held={0: 0.8},
    leaders=(Leader(BEST, (0.1, 0.4, 0.6, 0.975)), Leader(SECOND, (0.4, 0.5))),
)  # fmt: skip


GPUS = [Device(0, "node", "0", "NVIDIA T4", "GPU-a", 15.0), Device(1, "node", "1", "NVIDIA [L4]")]
READINGS = {0: {"memory_gib": 3.25, "util_pct": 90.0}}


def terminal(width: int = 80, height: int = 24, encoding: str = "utf-8") -> SweepConsole:
    """A console whose terminal is a stream; its cursor's movements are in it, too."""
    console = SweepConsole(stream=io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True))
    console.console = Console(
        file=console.console.file, force_terminal=True, width=width, height=height, color_system=None
    )
    return console


def drawn(console: SweepConsole, state: Snapshot, devices: Sequence[Device] = GPUS, **options: Any) -> list[str]:
    """The rows of the table."""
    console.start(devices, lambda: state, **options)
    console.stop(state)
    console.console.file = io.StringIO()
    with console.console.capture() as capture:
        console.console.print(console._table(state, READINGS))
    return [row.rstrip() for row in capture.get().splitlines()]


def test_plain_lines_say_what_the_table_says() -> None:
    assert plain(STATE, GPUS, READINGS, {0: 4115.0}) == (
        "5/8 trials | 2 running | 1 stopped early | 1 failed | best 0.975 (t0003 at epoch 20)"
        " | gpu 0: 80% held, 3.2/15.0 GiB, 12,346 samples/s, 3.0x of one at a time | 1 min 5 s, about 40 s left"
    )
    assert plain(replace(STATE, time_left_s=None, best=None)).endswith("time left not known yet")
    assert "best on synthetic data 0.975" in plain(STATE, synthetic=True)


def test_an_interrupted_sweep_is_not_all_done() -> None:
    assert plain(replace(STATE, time_left_s=0.0)).endswith("| 1 min 5 s, ended before all trials had")
    assert plain(replace(STATE, time_left_s=0.0, num_trials=5)).endswith("| 1 min 5 s, all done")


def test_a_sweep_of_which_no_trial_has_begun_says_why() -> None:
    empty = replace(STATE, running=0, finished=0, stopped=0, failed=0, best=None)
    assert "0/8 trials | 0 running (the first workers start) |" in plain(empty)
    assert "workers start" not in plain(replace(STATE, running=0))  # between two trials


def test_the_table_at_80_columns() -> None:
    rows = drawn(terminal(), STATE, alone={0: 4115.0})
    assert rows == [
        "trials  " + "━" * 19 + "─" * 11 + " 5/8",
        "        2 running  3 finished  1 stopped early  1 failed",
        "  best  0.975  ▁▃▅█  t0003  epoch 20       lr=0.1235 path=xxxxxxxxxxxxxxxxxxxxx…",
        "        0.5    ▁█    t0004  epoch 2, runs  lr=0.01",
        " gpu 0  ━━━━━━──  80 %  3.2/15.0 GiB  12,346 samples/s  3.0x of one at a time  …",
        " gpu 1  ────────   0 %  NVIDIA [L4]",
        "  time  1 min 5 s, about 40 s left",
    ]


def test_no_row_is_wider_than_the_terminal() -> None:
    large = replace(
        STATE, samples_per_s={0: 1_234_567.0, 1: None}, held={0: 1.0}, stopped=1000, failed=1000, finished=1000
    )
    for width in (40, 60, 80, 200):
        for row in drawn(terminal(width), large, alone={0: 100_000.0}):
            assert len(row) <= width
    (row,) = (row for row in drawn(terminal(), large, alone={0: 100_000.0}) if row.startswith(" gpu 0"))
    assert "1,234,567 samples/s  12.3x of one" in row


def test_more_gpus_than_lines_are_summed_up() -> None:
    many = [Device(index, "node", str(index), "NVIDIA T4") for index in range(64)]
    state = replace(STATE, held=dict.fromkeys(range(64), 0.5), samples_per_s=dict.fromkeys(range(64), 10.0))
    rows = drawn(terminal(), state, many)
    assert len(rows) <= 24
    assert "others  ━━━━────  50 %  50 more GPUs  500 samples/s" in rows


def test_a_gpu_without_readings_shows_none() -> None:
    assert gpu_facts(STATE, GPUS[1], READINGS, {1: 4115.0}) == []
    assert gpu_facts(STATE, GPUS[0], {}, {}) == ["12,346 samples/s"]
    assert gpu_facts(STATE, replace(GPUS[0], memory_gib=None), READINGS, {}) == ["3.2 GiB", "12,346 samples/s"]


def test_an_encoding_without_blocks_gets_ascii() -> None:
    rows = drawn(terminal(encoding="latin-1"), STATE)
    assert "trials  ###################----------- 5/8" in rows
    assert rows[2].startswith("  best  0.975  _-=#  t0003")


def test_a_terminal_has_a_live_table_and_others_have_lines() -> None:
    console = terminal(100)
    console.start(GPUS, lambda: STATE)
    console.update(STATE)
    console.stop(replace(STATE, finished=6, running=0, time_left_s=0.0))
    shown = console.console.file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    for text in ("5/8", "8/8", "2 running", "1 failed", "0.975", "12,346 samples/s", "all done"):
        assert text in shown
    lines = io.StringIO()
    other = SweepConsole(stream=lines)
    other.start([], lambda: STATE)
    other.stop(STATE)
    assert lines.getvalue() == plain(STATE) + "\n"


def test_trouble_is_said_once() -> None:
    stream = io.StringIO()
    console = SweepConsole(stream=stream)
    console.start([], lambda: STATE)
    for _ in range(3):
        console.update(STATE, {}, "no answer from the store.")
    assert stream.getvalue().count("no answer from the store.") == 1


def test_the_best_trials_are_cut_at_a_terminal_s_width_alone() -> None:
    console = terminal(60)
    console.best("accuracy", [BEST])
    shown = console.console.file.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    assert [len(line) for line in shown] == [60, 60]
    assert shown[1].endswith("…")
    stream = io.StringIO()
    SweepConsole(stream=stream).best("accuracy", [BEST, replace(BEST, score=0.5)])
    header, first, second = stream.getvalue().splitlines()
    assert header.split() == ["trial", "accuracy", "(last", "epoch)", "best", "epoch", "epochs", "lr", "path"]
    assert first.split() == ["t0003", "0.975", "12", "20", "0.1235", "x" * 24 + "\N{HORIZONTAL ELLIPSIS}"]
    assert second.index("0.5") > first.index("t0003")


def test_it_is_said_of_which_epoch_the_best_score_is_and_whether_it_may_change() -> None:
    running = replace(BEST, status="running")
    assert "best 0.975 (t0003 at epoch 20, which goes on)" in plain(replace(STATE, best=running))
    by_best = replace(BEST, score_rule="best", score=0.98)
    assert "best 0.98 (t0003 at epoch 12)" in plain(replace(STATE, best=by_best))
    stream = io.StringIO()
    SweepConsole(stream=stream).best("accuracy", [by_best])
    assert "accuracy (best epoch)" in stream.getvalue()


def test_diverged_trials_are_counted_by_name() -> None:
    assert "6/8 trials | 2 running | 1 stopped early | 1 diverged" in plain(replace(STATE, diverged=1))
    assert any("1 diverged" in row for row in drawn(terminal(), replace(STATE, diverged=1)))


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 1 s"), (7800, "2 h 10 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sets_stand_with_mean_error_and_number_of_repeats() -> None:
    sets = sets_of([0.9, 0.91, 0.92], [0.8, 0.82])
    leaders = tuple(Leader(each.best, (0.1, 0.9), each) for each in sets if each.best is not None)
    state = replace(STATE, leaders=leaders, best=sets[0].best)
    assert drawn(terminal(), state)[2:4] == [
        "  best  0.9100 \N{PLUS-MINUS SIGN} 0.0058  ▁█  t0000  3/3  lr=0.1",
        "        0.8100 \N{PLUS-MINUS SIGN} 0.0100  ▁█  t0001  2/3  lr=0.2",
    ]
    assert "| best 0.9100 \N{PLUS-MINUS SIGN} 0.0058 (t0000, 3/3 repeats) |" in plain(state)


METRICS = [{"metric": "accuracy", "direction": "max"}, {"metric": "latency_ms", "direction": "min"}]


def front_row(number: int) -> dict[str, Any]:
    values = [0.9 - number / 100, 5.0 - number / 10]
    return {"trial_id": f"t{number:04d}", "values": values, "hyperparameters": {"lr": 0.1, "layers": 2}}


def test_a_front_in_columns() -> None:
    assert front_lines(METRICS, [front_row(0), front_row(1)], None) == [
        "Pareto front of max accuracy, min latency_ms: 2 trials",
        "trial  accuracy  latency_ms   lr  layers",
        "t0000       0.9           5  0.1       2",
        "t0001      0.89         4.9  0.1       2",
    ]


def test_one_metric_none_and_many_trials() -> None:
    assert front_lines([], [], None) == []
    assert front_lines(METRICS, [], None) == [
        "no trial has a finite value of each metric (max accuracy, min latency_ms), so there is no Pareto front"
    ]
    lines = front_lines(METRICS, [front_row(number) for number in range(MOST_OF_FRONT + 3)], 30)
    assert lines[-1] == "and 3 more, in summary.json"
    assert all(len(line) <= 30 for line in lines[1:-1])


def test_a_state_that_cannot_be_shown_ends_the_view_alone() -> None:
    faulty = replace(STATE, leaders=(Leader(BEST, (0.1, float("nan"), 0.6)),))
    console = terminal(100)
    console.start(GPUS, lambda: STATE)
    for _ in range(2):
        console.update(faulty)
    console.stop(faulty)
    console.result("result")
    shown = console.console.file.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert shown.count("the state is shown no more, and the work goes on: ValueError: cannot convert float NaN") == 1
    assert shown.rstrip().endswith("result")
    other = terminal(100)
    other.start(GPUS, lambda: STATE)
    other.stop(faulty)
    assert other._live is None
