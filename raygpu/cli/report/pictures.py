"""The report's main figures as PNG, for MLflow, a paper or a chat: matplotlib draws the traces of Plotly's figures."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raygpu.cli.report.content import Figure, Page
from raygpu.errors import one_line
from raygpu.records.run_data import RunData

if TYPE_CHECKING:  # it takes seconds to import
    from matplotlib.axes import Axes

PICTURES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "sweep": {"plots/score.png": ("curve-0",), "plots/gpus.png": ("gpus",)},
    "train": {"plots/score.png": ("curve-0",)},
    "pack": {"curve.png": ("throughput-curve",)},
    "pack --advise": {"curve.png": ("throughput-curve",), "advice.png": ("throughput-curve", "speed-ups")},
    "place": {"placements.png": ("epoch-seconds", "step-time")},
    "balance": {"balance.png": ("speeds", "split-speed")},
}
"""Names of the figures in each picture of a run, side by side."""
MOST_ROWS = 60
"""Largest number of names on an axis, as of the slots of GPUs."""
LONGEST_NAME = 40
"""Largest number of characters of a name on an axis or in a legend."""
CHARACTERS_PER_INCH = 13
"""Number of a title's characters in an inch."""
PIXELS_PER_INCH = 84
"""Pixels of a figure's height in the page for each inch of its height in a picture."""
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKS = {"circle": "o", "circle-open": "o", "star": "*", "diamond": "D", "x": "x"}


def write_pictures(page: Page, run: RunData, warn: Callable[[str], None]) -> None:
    """Write the pictures of a run's page into its folder; none where the page lacks their figures.

    A picture that cannot be drawn is told: no result depends on it.
    """
    figures_by_name = {figure.name: figure for section in page.sections for figure in section.figures}
    kind = "pack --advise" if run.advice is not None else run.kind
    for name, names in PICTURES[kind].items():
        if figures := [figures_by_name[each] for each in names if each in figures_by_name]:
            path = run.folder.path / name
            try:
                path.parent.mkdir(exist_ok=True)
                draw(f"{page.title}\n{page.subtitle}", figures, path)
            except Exception as error:  # noqa: BLE001 - as above
                warn(f"no picture {name}: {one_line(error)}")


def draw(title: str, figures: Sequence[Figure], path: Path) -> None:
    """Draw figures side by side. `savefig` would draw them twice, the first time for their layout alone."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Picture

    width, height = (9 if len(figures) == 1 else 13), max(figure.height_px for figure in figures) / PIXELS_PER_INCH
    lines = [textwrap.fill(line, CHARACTERS_PER_INCH * width, max_lines=2) for line in title.splitlines()]
    with rc_context({"text.parse_math": False}):  # a command in a title may have dollar signs
        picture = Picture(figsize=(width, height), dpi=110, layout="constrained")
        picture.suptitle("\n".join(lines), fontsize=10)
        rows = 0
        for part, figure in zip(picture.subfigures(1, len(figures), squeeze=False)[0], figures, strict=True):
            axes = part.subplots()
            axes.set_title(figure.title, fontsize=10)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.25)
            axes.set_axisbelow(True)
            _draw(axes, figure.plot.to_plotly_json())
            handles, labels = axes.get_legend_handles_labels()
            if labels:
                columns = max(1, int(14 * width / len(figures) / (10 + max(map(len, labels)))))
                rows = max(rows, math.ceil(len(labels) / columns))
                part.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)
        picture.set_figheight(height + 0.2 * (rows + sum(line.count("\n") + 1 for line in lines)))
        FigureCanvasAgg(picture).print_png(path)


def _draw(axes: Axes, plot: Mapping[str, Any]) -> None:
    """Draw the traces and the axes of a figure."""
    layouts = {letter: plot["layout"].get(f"{letter}axis", {}) for letter in "xy"}
    names = {letter: _names(plot["data"], letter, layouts[letter]) for letter in "xy"}
    ends: dict[Any, float] = {}  # of the bars that are stacked
    for trace in plot["data"]:
        x, y = ([_place(value, names[letter]) for value in trace[letter]] for letter in "xy")
        if trace["type"] == "bar":
            places, lengths = (y, x) if trace.get("orientation") == "h" else (x, y)
            begins = trace.get("base")
            if begins is None:
                stacked = plot["layout"].get("barmode") == "stack"
                begins = [ends.get(place, 0.0) if stacked else 0.0 for place in places]
                ends |= {place: begin + length for place, begin, length in zip(places, begins, lengths, strict=True)}
            _bars(axes, trace, places, begins, lengths)
        else:
            _curve(axes, trace, x, y)
    for letter, layout in layouts.items():
        _axis(axes, letter, layout, names[letter])


def _names(traces: Sequence[Mapping[str, Any]], letter: str, layout: Mapping[str, Any]) -> list[str]:
    """Return the names on an axis; empty for an axis of numbers."""
    categories = layout.get("categoryarray") or (value for trace in traces for value in trace[letter])
    return list(dict.fromkeys(value for value in categories if isinstance(value, str)))[-MOST_ROWS:]


def _place(value: Any, names: Sequence[str]) -> float:
    """Return a value's place on its axis; NaN, which is not drawn, for a gap."""
    if isinstance(value, str):
        return float(names.index(value)) if value in names else math.nan
    return math.nan if value is None else float(value)


def _bars(
    axes: Axes, trace: Mapping[str, Any], places: Sequence[float], begins: Sequence[float], lengths: Sequence[float]
) -> None:
    """Draw bars as one collection: of thousands, each by itself takes seconds."""
    from matplotlib.collections import PolyCollection

    corners = []
    for place, begin, length in zip(places, begins, lengths, strict=True):
        across, along = (place - 0.4, place + 0.4), (begin, begin + length)
        ends = [(across[0], along[0]), (across[0], along[1]), (across[1], along[1]), (across[1], along[0])]
        if not math.isnan(place + length):
            corners.append([end[::-1] for end in ends] if trace.get("orientation") == "h" else ends)
    colour = trace["marker"]["color"]
    axes.add_collection(
        PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=0.3, label=_label(trace["name"]))
    )
    axes.autoscale_view()


def _curve(axes: Axes, trace: Mapping[str, Any], x: Sequence[float], y: Sequence[float]) -> None:
    """Draw a curve, its marks and its error bars."""
    mode, line, marker = trace["mode"], trace.get("line", {}), trace.get("marker", {})
    colour, hollow = line.get("color") or marker.get("color"), marker.get("symbol") == "circle-open"
    axes.plot(
        x,
        y,
        color=colour,
        alpha=trace.get("opacity", marker.get("opacity")),
        linestyle=DASHES[line.get("dash", "solid")] if "lines" in mode else "none",
        linewidth=line.get("width", 2),
        marker=MARKS[marker.get("symbol", "circle")] if "markers" in mode else "none",
        markersize=0.8 * marker.get("size", 6),
        markerfacecolor="none" if hollow else colour,
        markeredgecolor=marker.get("line", {}).get("color", colour),
        label=_label(trace.get("name")) if trace.get("showlegend", True) else None,
    )
    if "error_y" in trace:
        ends = [[each or math.nan for each in trace["error_y"][side]] for side in ("arrayminus", "array")]
        axes.errorbar(x, y, yerr=ends, fmt="none", ecolor=colour, capsize=3)


def _label(name: str | None) -> str | None:
    """Return a name for the legend, from which matplotlib leaves out those that begin with an underscore."""
    return name and _short(f" {name}" if name.startswith("_") else name)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 3]}..."


def _axis(axes: Axes, letter: str, layout: Mapping[str, Any], names: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator

    axis = axes.xaxis if letter == "x" else axes.yaxis
    axis.set_label_text(layout.get("title", {}).get("text", ""))
    if layout.get("type") == "log":
        axes.set(**{f"{letter}scale": "log"})
        axis.set_minor_locator(LogLocator(subs=(2, 5)))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
    if "tickvals" in layout:
        axis.set_ticks(layout["tickvals"], labels=layout.get("ticktext"))
        axis.set_ticks([], minor=True)
    if names:
        axis.set_ticks(range(len(names)), labels=[_short(name) for name in names])
    if layout.get("rangemode") == "tozero":
        axes.set(**{f"{letter}lim": (0, None)})
    if "range" in layout:
        axes.set(**{f"{letter}lim": layout["range"]})
    if layout.get("autorange") == "reversed":
        axis.set_inverted(True)
