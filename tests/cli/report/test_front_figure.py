from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raygpu.cli.report.front_figure import front_figures


def run_in(folder: Path) -> Any:
    return SimpleNamespace(folder=SimpleNamespace(objectives_csv=folder / "objectives.csv"))


def test_every_trial_and_the_front(tmp_path: Path) -> None:
    (tmp_path / "objectives.csv").write_text(
        "id,front,accuracy,latency_ms\nt0000,yes,0.9,5\nt0001,no,0.5,9\nt0002,yes,0.7,2\n"
    )
    (figure,) = front_figures(run_in(tmp_path))
    others, front = figure.plot.data
    assert (list(others.x), list(others.y)) == ([9.0], [0.5])
    assert (list(front.x), list(front.y)) == ([2.0, 5.0], [0.7, 0.9])
    assert list(front.text) == ["t0002", "t0000"]
    assert figure.table is not None
    assert len(figure.table.rows) == 2


def test_a_figure_for_each_further_metric_and_none_for_one(tmp_path: Path) -> None:
    assert front_figures(run_in(tmp_path)) == []
    (tmp_path / "objectives.csv").write_text("id,front,a,b,c\nt0000,yes,1,2,3\n")
    assert [figure.title for figure in front_figures(run_in(tmp_path))] == ["a and b", "a and c"]
