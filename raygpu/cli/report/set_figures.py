"""The sets of hyper-parameters of a sweep with repeats, in its report: their mean scores with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.cli import set_view
from raygpu.cli.formatting import hyperparameters, score_text
from raygpu.cli.report.content import SERIES, Figure, Section, Table, figure
from raygpu.records.run_data import RunData
from raygpu.records.sets_csv import SetRow

NUM_DRAWN = 10
"""Number of sets in the figure."""
NUM_BEST = 10
"""Number of sets in the table; the others are folded."""


def sets_section(run: RunData, code: str) -> Section:
    """Return the section of the best sets. code: the command that trains the best one again."""
    comparison, best = run.summary["comparison"], run.sets[0]
    several = "trainings" if run.summary.get("folds") else "repeats"
    notes = [] if comparison is None else [f"{set_view.told(comparison, several)}."]
    notes.append(f"Best: {best.set_id} with {hyperparameters(best.hyperparameters)}. To train its best repeat again:")
    folded_tables = [_table(run, run.sets, f"all {len(run.sets):,} sets")] if len(run.sets) > NUM_BEST else []
    drawn = [row for row in run.sets if row.score is not None][:NUM_DRAWN]
    figures = [_intervals(run, drawn)] if drawn else []
    tables = [_table(run, run.sets[:NUM_BEST], "the best sets, by mean score; those that lack repeats come last")]
    return Section("best", "Best sets", notes, tables, figures, folded_tables, code)


def _table(run: RunData, rows: Sequence[SetRow], caption: str) -> Table:
    names = list(dict.fromkeys(name for row in rows for name in row.hyperparameters))
    header = ("set", str(run.summary["metric"]), "repeats", "status", *names)
    cells = [
        (
            row.set_id,
            None if row.score is None else score_text(row.score, row.standard_error, rows[0].standard_error),
            row.repeats,
            row.status,
            *(row.hyperparameters.get(name) for name in names),
        )
        for row in rows
    ]
    return Table(header, cells, caption)


def _intervals(run: RunData, rows: Sequence[SetRow]) -> Figure:
    """Return the mean of each set with two standard errors to either side, and its repeats as points."""
    metric = str(run.summary["metric"])
    scores = {row.trial_id: row.score for row in run.trials if row.finite and row.status != "stopped"}
    names = [row.set_id for row in rows]
    points = [(score, name) for name in names for trial, score in scores.items() if trial.startswith(f"{name}-")]
    plot = figure(xaxis_title=metric)
    plot.add_scatter(
        x=[score for score, _ in points],
        y=[name for _, name in points],
        mode="markers",
        name="a repeat",
        marker={"color": SERIES[7], "size": 6, "opacity": 0.55},
    )
    errors = {"type": "data", "array": [2 * (row.standard_error or 0.0) for row in rows], "thickness": 2}
    plot.add_scatter(
        x=[row.score for row in rows],
        y=names,
        mode="markers",
        name="mean, two standard errors to either side",
        error_x=errors,
        marker={"color": SERIES[0], "size": 9, "symbol": "diamond"},
    )
    plot.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], automargin=True)
    table = Table(
        ("set", "mean", "standard error", "repeats"),
        [(row.set_id, row.score, row.standard_error, row.repeats) for row in rows],
    )
    says = f"The mean score of {'each set' if len(run.sets) <= NUM_DRAWN else f'the {len(rows)} best sets'}."
    return Figure("sets", "Sets with their repeats", plot, says, table, 140 + 26 * len(rows))
