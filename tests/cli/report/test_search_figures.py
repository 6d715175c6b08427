"""Figures of hyper-parameters: axes, importance, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.cli.report.search_figures import search_figures
from tests.report_cases import record, sweep


def test_the_hyperparameter_that_decides_is_the_most_important_one(tmp_path: Path) -> None:
    trials = [record(i, 1 - abs(i - 20) / 40, lr=10 ** (-3 + i / 20), noise=(i * 17) % 40 / 40) for i in range(40)]
    figures, notes = search_figures(sweep(tmp_path / "run", trials=trials))
    assert [figure.name for figure in figures] == ["parallel", "importance", "slices"]
    assert notes == []
    assert figures[1].says.startswith("lr decides most")
    assert figures[1].table is not None
    assert sum(row[1] for row in figures[1].table.rows) == pytest.approx(1.0)


def test_a_wide_range_has_a_logarithmic_axis_and_texts_their_own_ticks(tmp_path: Path) -> None:
    figures, _ = search_figures(sweep(tmp_path / "run", 20))
    lr, hidden, activation, score = figures[0].plot.data[0].dimensions
    assert lr.label == "lr (log)"
    assert max(lr.values) == pytest.approx(-0.5)
    assert hidden.label == "hidden"
    assert list(activation.ticktext) == ["gelu", "relu"]
    assert score.label == "accuracy"


def test_an_axis_is_logarithmic_as_the_space_is(tmp_path: Path) -> None:
    trials = [record(i, i / 10, lr=0.1 + i / 100, momentum=1e-5 if i == 3 else i / 10 + 0.01) for i in range(10)]
    run = sweep(tmp_path / "run", trials=trials)
    run.config["space"].update({"lr": {"loguniform": [0.01, 1.0]}, "momentum": {"uniform": [0.0, 1.0]}})
    figures, _ = search_figures(run)
    assert [axis.label for axis in figures[0].plot.data[0].dimensions] == ["lr (log)", "momentum", "accuracy"]


def test_the_slices_know_which_trial_came_first(tmp_path: Path) -> None:
    trials = [record(i, i / 10, lr=0.1 + i) for i in range(10)]
    figures, _ = search_figures(sweep(tmp_path / "run", trials=trials))
    slices = figures[-1].plot.data[0]
    assert dict(zip(slices.marker.color, slices.y, strict=True)) == {i: i / 10 for i in range(10)}


@pytest.mark.parametrize("count", [6, 40])
def test_of_very_many_hyperparameters_the_most_important_ones_are_drawn(count: int, tmp_path: Path) -> None:
    others = {f"x{n:03d}": n for n in range(100)}
    trials = [
        record(i, i / count, **{name: float((n % 10 + 1) * i % 11) for name, n in others.items()}, zoom=float(i))
        for i in range(count)
    ]
    figures, notes = search_figures(sweep(tmp_path / "run", trials=trials))
    which = "the most important ones" if count == 40 else "the first ones"
    assert notes[-1] == f"The figures show 30 of 101 hyper-parameters, {which}."
    drawn = [axis.label for axis in figures[0].plot.data[0].dimensions[:-1]]
    assert len(drawn) == len(figures[-1].plot.data) == 30
    assert figures[-1].says == "The score by 30 of 101 hyper-parameters; later trials are lighter."
    if count == 40:
        assert "zoom" in drawn
        assert figures[1].table is not None
        assert len(figures[1].table.rows) == 101


def test_few_trials_have_no_importance(tmp_path: Path) -> None:
    figures, notes = search_figures(sweep(tmp_path / "run", 6))
    assert [figure.name for figure in figures] == ["parallel", "slices"]
    assert notes == ["Importance is estimated from 8 trials with a score on; there are 5."]


def test_what_not_every_trial_has_is_left_out_with_a_word(tmp_path: Path) -> None:
    trials = [record(i, i / 10, lr=0.1 * (i + 1), **({"width2": i} if i % 2 else {})) for i in range(10)]
    figures, notes = search_figures(sweep(tmp_path / "run", trials=trials))
    assert notes == ["width2 is left out of the figures: not every trial has it."]
    assert [axis.label for axis in figures[0].plot.data[0].dimensions] == ["lr", "accuracy"]


@pytest.mark.parametrize("score", [0.5, None])
def test_trials_that_are_all_alike_have_no_figures(tmp_path: Path, score: float | None) -> None:
    trials = [record(i, score, "failed" if score is None else "finished", lr=0.1) for i in range(9)]
    figures, notes = search_figures(sweep(tmp_path / "run", trials=trials))
    assert figures == []
    assert "fewer than two differ" in notes[-1]


def test_equal_scores_have_no_importance(tmp_path: Path) -> None:
    trials = [record(i, 0.5, lr=0.1 + i) for i in range(12)]
    figures, notes = search_figures(sweep(tmp_path / "run", trials=trials))
    assert [figure.name for figure in figures] == ["parallel", "slices"]
    assert notes
