"""The report's main plots as PNG, for MLflow, a paper or a chat: curves of the score, and the timeline of the GPUs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raygpu.cli.report.content import COLOURS, SERIES
from raygpu.cli.report.gpu_figures import ended, lanes
from raygpu.cli.report.time_scale import time_scale
from raygpu.records.run_data import RunData
from raygpu.records.timeline import TRAINING

if TYPE_CHECKING:  # it takes seconds to import
    from matplotlib.figure import Figure as MatplotlibFigure

NUM_NAMED = 5
MOST_LANES = 60
"""Largest number of rows in a picture of the timeline."""


def write_pictures(run: RunData) -> list[Path]:
    """Write `score.png` and `gpus.png` into the run's `plots/`; return the files."""
    written = []
    for name, draw in (("score", _score), ("gpus", _gpus)):
        path = run.folder.plots / f"{name}.png"
        if draw(run, path):
            written.append(path)
    return written


def _score(run: RunData, path: Path) -> bool:
    """Draw the score's metric by epoch; return False where there are no curves."""
    from matplotlib.figure import Figure

    series = run.series()
    if not series:
        return False
    plot = Figure(figsize=(9, 5), dpi=120, layout="constrained")
    axes = plot.subplots()
    outcome = {row.trial_id: row.status for row in run.trials}
    named = [row.trial_id for row in run.ranked()[:NUM_NAMED]] or [TRAINING]
    for status, colour in COLOURS.items():
        alike = [trial for trial in run.timeline.curves if trial not in named and outcome.get(trial) == status]
        x, y = _joined([_points(run.timeline.curves[trial], series[0]) for trial in alike])
        axes.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
    for trial, colour in zip(named, SERIES, strict=False):
        epochs, values = _points(run.timeline.curves.get(trial, {}), series[0])
        axes.plot(epochs, values, color=colour, linewidth=2, label=trial, marker="o" if len(epochs) < 2 else None)
    axes.set(xlabel="epoch", ylabel=series[0], title=run.name)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    _write(plot, path)
    return True


def _points(curve: Mapping[int, Mapping[str, float]], metric: str) -> tuple[list[int], list[float]]:
    found = [(epoch, values[metric]) for epoch, values in sorted(curve.items()) if metric in values]
    return [epoch for epoch, _ in found], [value for _, value in found]


def _joined(curves: Sequence[tuple[list[int], list[float]]]) -> tuple[list[float], list[float]]:
    """Return many curves as one, with gaps between them."""
    x = [float(value) for epochs, _ in curves for value in (*epochs, math.nan)]
    y = [value for _, values in curves for value in (*values, math.nan)]
    return x, y


def _gpus(run: RunData, path: Path) -> bool:
    """Draw the timeline of the GPUs; return False without one."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = lanes(run.timeline.occupancies)[:MOST_LANES]
    if not rows:
        return False
    outcome = {row.trial_id: row.status for row in run.trials}
    plot = Figure(figsize=(11, 1.6 + 0.28 * len(rows)), dpi=120, layout="constrained")
    axes = plot.subplots()
    scale = time_scale(run)
    shown = set()
    for height, lane in enumerate(reversed(rows)):
        for name, colour in COLOURS.items():
            bars = [scale.bar(stay.began_s, stay.ended_s) for stay in lane.stays if ended(stay, outcome) == name]
            shown |= {name} if bars else set()
            axes.broken_barh(bars, (height - 0.4, 0.8), facecolors=colour, edgecolor="white", linewidth=0.3)
    axes.set_yticks(range(len(rows)), [lane.label for lane in reversed(rows)])
    axes.set(xlabel=scale.title, title=f"{run.name}: what ran on each GPU")
    axes.spines[["top", "right"]].set_visible(False)
    names = [name for name in COLOURS if name in shown]
    axes.legend(handles=[Patch(color=COLOURS[name], label=name) for name in names], frameon=False, ncols=len(names))
    _write(plot, path)
    return True


def _write(plot: MatplotlibFigure, path: Path) -> None:
    """Draw a picture into its file. `savefig` would draw it twice, the first time for its layout alone."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path.parent.mkdir(exist_ok=True)
    FigureCanvasAgg(plot).print_png(path)
