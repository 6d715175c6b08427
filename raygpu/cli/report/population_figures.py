"""The population of a sweep in its report: how the best trial's parameters were trained, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from raygpu.cli.report.content import SERIES, Figure, Section, Table, figure
from raygpu.records import population_file
from raygpu.records.run_data import RunData
from raygpu.search.lineage import LineageSegment, lineage


def is_population(run: RunData) -> bool:
    """Return whether the trials of a sweep took over each other's parameters."""
    return bool(run.config.get("population", {}).get("interval"))


def population_section(run: RunData) -> Section:
    """Return the schedule of the best trial's parameters, and the takeovers of each interval; empty without a
    population."""
    title, best = "Population", run.summary["best"]
    if not is_population(run):
        return Section("population", title)
    changes = population_file.read(run.folder.population)
    if not changes or best is None:
        return Section("population", title, ["No trial took over another one's parameters."])
    names = list(dict.fromkeys(name for each in changes.values() for change in each for name in change.values))
    begun = {
        row.trial_id: {name: row.hyperparameters[name] for name in names if name in row.hyperparameters}
        for row in run.trials
    }
    stretches = lineage(best["trial_id"], best["epoch"], changes, begun)
    number = sum(map(len, changes.values()))
    notes = [
        f"{number} times a trial took over another one's parameters, with changed values. The scores are those of"
        " changing values: a trial's first values alone do not give them. best.toml has the best trial's schedule."
    ]
    rows = [(f"{s.first} to {s.last}", s.trial_id, *(s.values.get(name) for name in names)) for s in stretches]
    tables = [Table(("epochs", "trained by", *names), rows, f"how the parameters of {best['trial_id']} were trained")]
    by_epoch = Counter(change.epoch for each in changes.values() for change in each)
    folded = [Table(("after epoch", "takeovers"), sorted(by_epoch.items()), "takeovers by epoch")]
    figures = [
        _schedule(stretches, name, place)
        for place, name in enumerate(names)
        if all(isinstance(each.values.get(name), int | float) for each in stretches)
    ]
    return Section("population", title, notes, tables, figures[:1], folded)


def _schedule(stretches: Sequence[LineageSegment], name: str, place: int) -> Figure:
    """Return a hyper-parameter's value in each epoch of the best trial's parameters."""
    values: list[Any] = [each.values[name] for each in stretches]
    axis: dict[str, Any] = {"type": "log"} if min(values) > 0 else {}
    plot = figure(xaxis_title="epoch", yaxis_title=name, yaxis=axis)
    for stretch, value, nth in zip(stretches, values, range(len(values)), strict=True):
        plot.add_scatter(
            x=[stretch.first - 1, stretch.last],
            y=[value, value],
            name=stretch.trial_id,
            mode="lines",
            line={"color": SERIES[nth % len(SERIES)], "width": 3},
        )
    says = f"{name} of the best trial's parameters, each part trained by the trial that is named."
    return Figure(f"schedule-{place}", f"{name} by epoch", plot, says)
