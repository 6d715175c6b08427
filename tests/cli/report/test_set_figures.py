"""The section of a report on sets of hyper-parameters with repeats."""

from __future__ import annotations

from pathlib import Path

from raygpu.cli.report.page import html
from raygpu.cli.report.search_figures import search_figures
from raygpu.cli.report.sweep_page import sweep_page
from raygpu.records import sets_csv
from raygpu.records.run_data import RunData
from raygpu.records.set_records import compared, ranked_sets
from raygpu.search.repeats import Repetition
from tests.repeat_cases import records
from tests.report_cases import sweep_folder

SCORES = [[0.9 - place / 50, 0.91 - place / 40, 0.92 - place / 60] for place in range(12)]


def of_repeats(folder: Path) -> RunData:
    """Return a sweep of twelve sets with three repeats, and one of which a repeat failed."""
    trials = records(*SCORES, [0.99, None, 0.98])
    run = sweep_folder(folder, trials=trials)
    sets = ranked_sets(trials, Repetition(3), maximize=True)
    sets_csv.write(run.sets_csv, sets)
    found = compared(sets)
    assert found is not None
    best = sets[0]
    assert best.best is not None
    summary = run.read_summary() or {}
    described = {"trial_id": best.best.trial.trial_id, "set_id": best.set_id, "epoch": 3}
    described |= {"score": best.mean, "standard_error": best.error, "repeats": 3}
    run.write_summary(summary | {"best": described, "num_sets": 13, "left_out": 0, "comparison": found.as_dict()})
    return RunData.load(run)


def test_the_section_has_means_intervals_and_the_verdict(tmp_path: Path) -> None:
    run = of_repeats(tmp_path / "run")
    page = sweep_page(run)
    section = next(section for section in page.sections if section.name == "best")
    assert "paired t-test over 3 repeats" in section.notes[0]
    assert section.tables[0].rows[0][:4] == ("t0000", "0.9100 \N{PLUS-MINUS SIGN} 0.0058", 3, "complete")
    assert section.folded[0].rows[-1][:4] == ("t0012", "0.9850 \N{PLUS-MINUS SIGN} 0.0050", 2, "failed")
    (figure,) = section.figures
    points, means = figure.plot.data
    assert len(points.x) == 30
    assert (means.y[0], round(means.error_x.array[0], 4)) == ("t0000", 0.0115)
    assert ("best set", "t0000") in page.facts
    assert "Sets with their repeats" in html(page, "1.0")


def test_figures_on_hyper_parameters_are_of_means(tmp_path: Path) -> None:
    figures, _ = search_figures(of_repeats(tmp_path / "run"))
    table = figures[0].table
    assert table is not None
    assert [row[0] for row in table.rows[:2]] == ["t0000", "t0001"]
    assert len(table.rows) == 12
