"""Figures of a run's curves: each metric by epoch, and the best score by time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raygpu.cli.report.content import COLOURS, SERIES, Figure, Table, figure
from raygpu.cli.report.time_scale import time_scale
from raygpu.records.run_data import RunData
from raygpu.records.timeline import TRAINING
from raygpu.search.scoring import bounded

NUM_NAMED = 5
"""Number of best trials whose curves have a colour and a name of their own."""
MOST_POINTS = 40_000
"""Largest number of points of one figure; curves are thinned evenly beyond it. As SVG they are drawn in a fifth of a
second, also without a graphics card, where WebGL takes seconds."""
NUM_LAYERS = 16
"""Largest number of traces of one outcome's curves: their colours add up, so that a crowd of curves has a density."""
NUM_ROWS = 20
"""Largest number of trials in a figure's table."""


def curve_figures(run: RunData) -> list[Figure]:
    """Return a figure for each metric that has curves, the score's first."""
    return [_curves(run, name, number) for number, name in enumerate(run.series())]


def _curves(run: RunData, metric: str, number: int) -> Figure:
    curves = {
        trial: {epoch: values[metric] for epoch, values in sorted(curve.items()) if metric in values}
        for trial, curve in run.timeline.curves.items()
    }
    number_of_points = sum(map(len, curves.values()))
    stride = max(1, math.ceil(number_of_points / MOST_POINTS))
    named = [row.trial_id for row in run.ranked()[:NUM_NAMED]] or [TRAINING]
    plot = figure(xaxis_title="epoch", yaxis_title=metric, updatemenus=[_axis_buttons()])
    outcome = {row.trial_id: row.status for row in run.trials}
    for status in COLOURS:
        others = [trial for trial in curves if trial not in named and outcome.get(trial) == status]
        _add_many(plot, {trial: curves[trial] for trial in others}, stride, status)
    for trial, colour in zip(reversed(named), reversed(SERIES[: len(named)]), strict=True):
        points = _thinned(curves.get(trial, {}), stride)
        plot.add_scatter(
            x=[epoch for epoch, _ in points],
            y=[value for _, value in points],
            name=trial,
            mode="lines+markers" if len(points) < 2 else "lines",
            line={"color": colour, "width": 2.5},
        )
    best = "" if run.kind != "sweep" else f"; the {len(named)} best trials in colours of their own"
    return Figure(f"curve-{number}", metric, plot, f"{metric} after each epoch{best}.", _table(run, metric, curves))


def _add_many(plot: Any, curves: Mapping[str, Mapping[int, float]], stride: int, status: str) -> None:
    """Add the curves of one outcome as a few traces: a browser draws a trace of 10,000 points, and not 1,000 traces."""
    trials = list(curves)
    if not trials:
        return
    line = {"color": COLOURS[status], "width": 1}
    named = f"{status} ({len(trials)})"
    plot.add_scatter(x=[None], y=[None], name=named, legendgroup=status, mode="lines", line=line)  # of the legend
    opacity = 0.35 if len(trials) <= 4 * NUM_LAYERS else 0.12
    for layer in range(min(len(trials), NUM_LAYERS)):
        points = [
            (*point, trial)
            for trial in trials[layer::NUM_LAYERS]
            for point in (*_thinned(curves[trial], stride), (None, None))
        ]
        plot.add_scatter(
            x=[epoch for epoch, _, _ in points],
            y=[value for _, value, _ in points],
            text=[trial for _, _, trial in points],
            legendgroup=status,
            showlegend=False,
            mode="lines",
            opacity=opacity,
            line=line,
            hovertemplate="%{text}, epoch %{x}: %{y}<extra></extra>",
        )


def _thinned(curve: Mapping[int, float], stride: int) -> list[tuple[int | None, float | None]]:
    """Return every so many-th point, and the last; what is not finite is a gap, and values are bounded, as an axis
    is wider than they are."""
    points: list[tuple[int | None, float | None]] = [
        (epoch, bounded(value) if math.isfinite(value) else None) for epoch, value in curve.items()
    ]
    return points if stride == 1 else [*points[:-1:stride], *points[-1:]]


def _axis_buttons() -> dict[str, object]:
    buttons = [
        {"label": kind, "method": "relayout", "args": [{"yaxis.type": kind, "yaxis.autorange": True}]}
        for kind in ("linear", "log")
    ]
    return {
        "type": "buttons",
        "direction": "right",
        "x": 0,
        "xanchor": "left",
        "y": 1.16,
        "pad": {"t": 0},
        "bgcolor": "rgba(127,127,127,0.15)",
        "font": {"color": "#8A8A8A"},
        "buttons": buttons,
    }


def _table(run: RunData, metric: str, curves: Mapping[str, Mapping[int, float]]) -> Table:
    order = [row.trial_id for row in run.ranked()] or list(curves)
    rows = []
    for trial in order[:NUM_ROWS]:
        values = [value for value in curves.get(trial, {}).values() if math.isfinite(value)]
        if values:
            rows.append((trial, len(curves[trial]), values[0], min(values), max(values), values[-1]))
    more = f", the {len(rows)} best trials" if len(order) > NUM_ROWS else ""
    return Table(("trial", "epochs", "first", "lowest", "highest", "last"), rows, f"{metric}{more}")


def best_so_far(runs: Sequence[RunData]) -> Figure | None:
    """Return the figure of the best score by time, a line for each run; None without timelines."""
    scale = time_scale(*runs)
    of_one = "single training" if any(run.per_set > 1 for run in runs) else "score"
    plot = figure(xaxis_title=scale.title, yaxis_title=f"best {of_one} so far")
    rows = []
    for run, colour in zip(runs, _colours(), strict=False):
        points = _best_points(run, scale.unit_s)
        if not points:
            continue
        plot.add_scatter(
            x=[at for at, _ in points],
            y=[score for _, score in points],
            name=run.name,
            mode="lines+markers",
            line={"shape": "hv", "color": colour},
            marker={"size": 5},
        )
        rows += [(run.name, at, score) for at, score in points[-NUM_ROWS:]]
    if not rows:
        return None
    says = "Each step is an epoch of a trial that beat all before it; trials that diverged or failed do not count."
    title, header = f"Best {of_one} so far", ("run", scale.unit, f"best {of_one}")
    return Figure("best-so-far", title, plot, says, Table(header, rows))


def _best_points(run: RunData, unit_s: float) -> list[tuple[float, float]]:
    """Return time since the start and score of each improvement, and the last epoch that counts."""
    series = run.series()
    if not series:
        return []
    wanted = run.config.get("metric", "")
    if series[0] not in (wanted, f"validation/{wanted}"):
        return []
    without_score = {row.trial_id for row in run.trials if not row.finite}
    moments = sorted(
        (run.timeline.ended_s[trial][epoch], bounded(values[series[0]]))
        for trial, curve in run.timeline.curves.items()
        if trial not in without_score
        for epoch, values in curve.items()
        if series[0] in values and math.isfinite(values[series[0]])
    )
    points: list[tuple[float, float]] = []
    for at, score in moments:
        if not points or (score > points[-1][1] if run.maximize else score < points[-1][1]):
            points.append(((at - run.began_s) / unit_s, score))
    if points and moments:
        points.append(((moments[-1][0] - run.began_s) / unit_s, points[-1][1]))
    return points


def _colours() -> Iterable[str]:
    while True:
        yield from SERIES
