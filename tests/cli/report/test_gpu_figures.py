"""The timeline of the GPUs: lanes, the time in use, outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.cli.report.gpu_figures import ended, lanes, occupancy, reading_figures, timeline
from raygpu.records.timeline import End, Occupancy
from tests.report_cases import sweep, training_folder


def stay(name: str, gpu: int | None, began_s: float, ended_s: float, end: End = "complete") -> Occupancy:
    """Return a stay of one trial with half of a GPU."""
    return Occupancy(name, (name,), gpu, 0.5, began_s, ended_s, end)


def test_stays_that_overlap_lie_in_lanes_of_their_own() -> None:
    stays = [stay("c", 0, 5, 9), stay("a", 0, 0, 5), stay("b", 0, 1, 4), stay("d", 1, 0, 1), stay("e", None, 0, 1)]
    found = [(lane.label, [each.name for each in lane.stays]) for lane in lanes(stays)]
    assert found == [
        ("GPU 0, slot 1", ["a", "c"]),
        ("GPU 0, slot 2", ["b"]),
        ("GPU 1, slot 1", ["d"]),
        ("no GPU yet, slot 1", ["e"]),
    ]


def test_time_in_use_counts_what_overlaps_once_and_gaps_not_at_all(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    run.timeline.occupancies[:] = [stay("a", 0, 0, 4), stay("b", 0, 2, 6), stay("c", 0, 8, 10)]
    ((name, number, busy, share, at_once, minutes),) = occupancy(run).rows
    assert (name, number, at_once) == ("GPU 0", 3, 2)
    assert busy == pytest.approx(80.0)
    assert share == pytest.approx(50.0)
    assert minutes == pytest.approx(10 / 60)


@pytest.mark.parametrize(
    ("end", "status", "expected"),
    [
        ("complete", "stopped", "stopped"),
        ("complete", "diverged", "diverged"),
        ("complete", "running", "interrupted"),
        ("error", "finished", "failed"),
        ("lost", "finished", "lost"),
        ("interrupted", "finished", "interrupted"),
    ],
)
def test_a_stay_has_the_colour_of_its_outcome(end: End, status: str, expected: str) -> None:
    assert ended(stay("a", 0, 0, 1, end), {"a": status}) == expected


def test_the_figure_has_a_bar_for_each_stay(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 20)
    figure = timeline(run)
    assert figure is not None
    bars = {trace.name: len(trace.x) for trace in figure.plot.data}
    assert bars == {"finished (16)": 16, "stopped (3)": 3, "failed (1)": 1}
    run.timeline.occupancies.clear()
    assert timeline(run) is None


def test_readings_have_a_line_for_each_gpu_and_what_no_card_tells_has_no_figure(tmp_path: Path) -> None:
    from raygpu.records.run_data import RunData

    figures = reading_figures(RunData.load(training_folder(tmp_path / "run")))
    (figure,) = figures
    assert figure.title == "training throughput (samples/s)"
    assert [trace.name for trace in figure.plot.data] == ["GPU 0", "GPU 1"]
    assert figure.says == "GPU 0: 3,000 on average; GPU 1: 1,000 on average."


def test_many_readings_are_averaged(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    run.timeline.readings.clear()
    run.timeline.readings[0] = [(run.began_s + i, {"power_w": float(i % 2)}) for i in range(10_000)]
    (figure,) = reading_figures(run)
    assert len(figure.plot.data[0].x) == 1_000
    assert set(figure.plot.data[0].y) == {0.5}


def test_time_begins_with_the_run_so_that_a_late_first_trial_is_a_gap(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run")
    run.timeline.starts[:] = [100.0]
    run.timeline.occupancies[:] = [stay("a", 0, 130, 160)]
    run.timeline.readings.clear()
    run.timeline.ended_s.clear()
    figure = timeline(run)
    assert figure is not None
    assert list(figure.plot.layout.xaxis.range) == pytest.approx([0.0, 60.6])
