"""Curves of trials: the best ones by name, the others as one trace, gaps, thinning, the best score by time."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from raygpu.cli.report import curve_figures as module
from raygpu.cli.report.curve_figures import best_so_far, curve_figures
from tests.report_cases import record, sweep


def test_the_best_trials_have_curves_of_their_own_and_the_others_one_for_each_outcome(tmp_path: Path) -> None:
    score, loss = curve_figures(sweep(tmp_path / "run", 20))
    assert (score.title, loss.title) == ("validation/accuracy", "train/loss")
    names = [trace.name for trace in score.plot.data if trace.name is not None]
    assert names == ["finished (11)", "stopped (3)", "failed (1)", "t0018", "t0003", "t0007", "t0011", "t0015"]
    others = [trace for trace in score.plot.data if trace.legendgroup == "finished" and not trace.showlegend]
    drawn = [trace for trace in others if trace.text is not None]
    assert sum(len(trace.x) for trace in drawn) == 11 * 4  # three epochs and a gap
    assert all(trace.x[3] is None for trace in drawn)


def test_a_crowd_of_curves_is_a_few_traces_that_let_each_other_through(tmp_path: Path) -> None:
    figure = curve_figures(sweep(tmp_path / "run", 400))[0]
    drawn = [trace for trace in figure.plot.data if trace.legendgroup == "finished" and trace.text is not None]
    assert len(drawn) == module.NUM_LAYERS
    assert {trace.opacity for trace in drawn} == {0.12}
    assert len({name for trace in drawn for name in trace.text}) == sum(len(trace.x) // 4 for trace in drawn)


def test_what_is_not_finite_is_a_gap(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 5)
    run.timeline.curves["t0003"][2]["validation/accuracy"] = math.nan
    figure = curve_figures(run)[0]
    best = figure.plot.data[-1]
    assert best.name == "t0003"
    assert best.y[1] is None
    assert best.y[2] is not None


def test_the_largest_float_leaves_room_for_an_axis(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 5)
    run.timeline.curves["t0003"][2]["validation/accuracy"] = -sys.float_info.max
    figures = curve_figures(run)
    drawn = [y for figure in figures for trace in figure.plot.data for y in trace.y if y is not None]
    assert min(drawn) == -1e300


def test_many_points_are_thinned_and_the_last_one_stays(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 4)
    for curve in run.timeline.curves.values():
        curve.clear()
        curve.update({epoch: {"validation/accuracy": epoch / 30_000} for epoch in range(1, 30_001)})
    figure = curve_figures(run)[0]
    drawn = sum(len(trace.x) for trace in figure.plot.data)
    assert drawn <= module.MOST_POINTS + 4 * len(figure.plot.data)
    assert figure.plot.data[-1].x[-1] == 30_000
    assert {trace.type for trace in figure.plot.data} == {"scatter"}, "WebGL takes seconds without a graphics card"


def test_the_best_score_only_rises(tmp_path: Path) -> None:
    figure = best_so_far([sweep(tmp_path / "run", 20)])
    assert figure is not None
    scores = list(figure.plot.data[0].y)
    assert scores == sorted(scores)
    assert scores[-1] == max(scores)


@pytest.mark.parametrize("fault", ["diverged", "failed"])
def test_a_trial_without_a_score_is_never_the_best_one(fault: str, tmp_path: Path) -> None:
    trials = [
        record(0, 0.6),
        record(1, 0.9, "failed" if fault == "failed" else "finished", diverged=fault == "diverged"),
    ]
    figure = best_so_far([sweep(tmp_path / "run", trials=trials)])
    assert figure is not None
    assert max(figure.plot.data[0].y) == pytest.approx(0.6)
    assert figure.title == "Best score so far"


def test_one_of_a_sets_trainings_is_called_a_single_one(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 5)
    figure = best_so_far([replace(run, config={**run.config, "repeats": 5})])
    assert figure is not None
    assert figure.title == "Best single training so far"
    assert figure.plot.layout.yaxis.title.text == "best single training so far"


def test_without_a_timeline_there_are_no_curves(tmp_path: Path) -> None:
    run = sweep(tmp_path / "run", 5)
    run.timeline.curves.clear()
    assert curve_figures(run) == []
    assert best_so_far([run]) is None
