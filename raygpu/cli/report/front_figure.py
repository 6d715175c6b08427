"""The figure of a sweep with several metrics: every trial, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.cli.report.content import SERIES, Figure, Table, figure
from raygpu.records import objectives_csv
from raygpu.records.objectives_csv import ObjectivesRow
from raygpu.records.run_data import RunData


def front_figures(run: RunData) -> list[Figure]:
    """Return a figure of the first metric against each further one; none for a sweep with one metric."""
    metrics, rows = objectives_csv.read(run.folder.objectives_csv)
    front = sorted((row for row in rows if row.on_front), key=lambda row: row.values)
    return [_against(metrics, number, rows, front) for number in range(1, len(metrics))] if rows else []


def _against(
    metrics: Sequence[str], number: int, rows: Sequence[ObjectivesRow], front: Sequence[ObjectivesRow]
) -> Figure:
    """Return the figure of the first metric against the one of this number."""
    plot = figure(xaxis_title=metrics[number], yaxis_title=metrics[0])
    others = [row for row in rows if not row.on_front]
    for name, points, colour, size in (("other trials", others, "#8A8A8A", 6), ("Pareto front", front, SERIES[0], 9)):
        ordered = sorted(points, key=lambda row: row.values[number])
        plot.add_scatter(
            x=[row.values[number] for row in ordered],
            y=[row.values[0] for row in ordered],
            text=[row.trial_id for row in ordered],
            name=name,
            # With more than two metrics, the front is no line in the plane of two of them.
            mode="lines+markers" if name == "Pareto front" and len(metrics) == 2 else "markers",
            line={"color": colour, "width": 1, "dash": "dot"},
            marker={"color": colour, "size": size},
        )
    says = "No other trial beats one of the front in every metric."
    table = Table(("trial", *metrics), [(row.trial_id, *row.values) for row in front], "the Pareto front")
    return Figure(f"front-{'abcdefgh'[number % 8]}", f"{metrics[0]} and {metrics[number]}", plot, says, table)
