"""The Pareto front of a sweep with several metrics, in lines: the trials that no other one beats in every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import aligned, value

MOST_ROWS = 12
"""Largest number of trials of a front that are listed."""


def front_lines(
    metrics: Sequence[Mapping[str, str]], front: Sequence[Mapping[str, Any]], width: int | None
) -> list[str]:
    """Return the lines after the table of the best trials; empty with a single metric.

    metrics: name and direction of each, as the summary has them. front: its trials, as the summary has them. width: of
    the terminal; None for no end.
    """
    if not metrics:
        return []
    goals = ", ".join(f"{goal['direction']} {goal['metric']}" for goal in metrics)
    if not front:
        return [f"no trial has a finite value of each metric ({goals}), so there is no Pareto front"]
    trials = "1 trial" if len(front) == 1 else f"{len(front)} trials"
    names = list(dict.fromkeys(name for row in front for name in row["hyperparameters"]))
    rows = [["trial", *(goal["metric"] for goal in metrics), *names]]
    for row in front[:MOST_ROWS]:
        values = [f"{number:.6g}" for number in row["values"]]
        rows.append([row["trial_id"], *values, *(value(row["hyperparameters"].get(name)) for name in names)])
    lines = [f"Pareto front of {goals}: {trials}", *(line[:width] for line in aligned(rows, named=True))]
    if len(front) > MOST_ROWS:
        lines.append(f"and {len(front) - MOST_ROWS} more, in summary.json")
    return lines
