"""Figures of packs: throughput and memory by the number of trainings at once, of one device or of several."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from raygpu.cli import profile_view
from raygpu.cli.report.content import Figure, Table, figure
from raygpu.config.sections import Way
from raygpu.planning.plausibility import is_alone
from raygpu.planning.profiles import Point, Profile

DASHES = ("solid", "dash", "dot", "dashdot")
"""Lines of the profiles that stand side by side."""
OUT_OF_MEMORY = "out of memory"
FEWEST_APART = 1.25
"""Smallest ratio of two neighbours on a logarithmic axis that both have a label."""
FAR_APART = 10.0
"""Ratio of the highest to the lowest rate beyond which a linear axis hides the lower curves."""


def throughput_figure(measured: list[tuple[str, Profile]]) -> Figure | None:
    """Return the throughput by the number of trainings at once, a curve for each way of each profile, with intervals;
    None without a measured point."""
    units = {profile.unit for _, profile in measured}
    unit = f"{'/'.join(sorted(units))}/s"
    plot = figure(yaxis_title=f"{unit}, all trainings together")
    rows, numbers = [], set()
    for place, (run, profile) in enumerate(measured):
        prefix = f"{run}: " if len(measured) > 1 else ""
        for way in profile.ways:
            points = [p for p in profile.of(way) if p.samples_per_s]
            if points:
                plot.add_scatter(
                    x=[p.n for p in points],
                    y=[p.samples_per_s for p in points],
                    error_y=errors([_interval(p) for p in points]),
                    name=f"{prefix}{profile_view.NAMES[way]}",
                    mode="lines+markers",
                    line={"color": profile_view.COLORS[way], "dash": DASHES[place % len(DASHES)]},
                )
            _odd_points(plot, profile, prefix, way)
            numbers |= {p.n for p in profile.points if p.way == way and (p.samples_per_s or p.fault == OUT_OF_MEMORY)}
            rows += [(run, p.label, p.n, *_interval(p)) for p in points]
    if not rows:
        return None
    at_once_axis(plot, numbers)
    rate_axis(plot)
    table = Table(("run", "way", "at once", f"{unit}", "lower end", "upper end"), rows, "with 95 % confidence")
    says = "A curve for each way to share the device; the bars are intervals of 95 % confidence."
    return Figure("throughput-curve", "Throughput by the number of trainings at once", plot, says, table)


def _odd_points(plot: Any, profile: Profile, own: str, way: Way) -> None:
    """Add the points of a way that are no part of its curve: with a compiled step, in doubt, and, as high as the
    curve's end, without memory."""
    points, colour = [p for p in profile.points if p.way == way], profile_view.COLORS[way]
    others = [(p, p.samples_per_s) for p in points if p.samples_per_s]
    last = [p.samples_per_s for p in profile.of(way) if p.samples_per_s][-1:]
    kinds = {
        "compiled": ([(p.n, rate) for p, rate in others if p.compiled and p.doubt is None], "star", colour),
        "in doubt": ([(p.n, rate) for p, rate in others if p.doubt is not None], "circle-open", "#8A8A8A"),
        OUT_OF_MEMORY: ([(p.n, rate) for rate in last for p in points if p.fault == OUT_OF_MEMORY], "x", colour),
    }
    for name, (marks, symbol, tint) in kinds.items():
        if marks:
            plot.add_scatter(
                x=[n for n, _ in marks],
                y=[rate for _, rate in marks],
                name=f"{own}{way}, {name}",
                mode="markers",
                marker={"symbol": symbol, "size": 12, "color": tint},
            )


def device_figures(profiles: Sequence[Profile], units: Sequence[float | None]) -> list[Figure]:
    """Return the trainings per hour on several devices, and, if any is known, per Reference GPU Unit.

    units: the RGUs of each profile's device; None if unknown.
    """
    progress_unit = "reports" if profiles[0].num_train is None else "epochs of one training"
    titles = [f"{progress_unit} per hour, all together", *([f"{progress_unit} per hour and RGU"] if any(units) else [])]
    plots = [figure(yaxis_title=title) for title in titles]
    numbers = set()
    for place, (profile, unit, device) in enumerate(
        zip(profiles, units, profile_view.device_names(profiles), strict=True)
    ):
        for way in profile.ways:
            points = [p for p in profile.of(way) if p.samples_per_s]
            numbers |= {p.n for p in points}
            for plot, parts in zip(plots, (1.0, unit), strict=False):
                plot.add_scatter(
                    x=[p.n for p in points if parts],
                    y=[3600 / (profile.time_per_training_s(p, 1) or 1.0) / parts for p in points if parts],
                    name=f"{profile_view.NAMES[way]}, {device}",
                    mode="lines+markers",
                    line={"color": profile_view.COLORS[way], "dash": DASHES[place % len(DASHES)]},
                    showlegend=bool(points and parts),
                )
    for plot in plots:
        at_once_axis(plot, numbers)
        rate_axis(plot)
    return [Figure(f"devices-{place}", title, plots[place], f"{title}.") for place, title in enumerate(titles)]


def _interval(point: Point) -> tuple[float, float, float]:
    """Return a point's throughput with the ends of its interval: those of its gain, in the same ratio."""
    rate = point.samples_per_s or 0.0
    if point.gain is None or is_alone(point):
        return rate, rate, rate
    spread = point.spread
    return rate, rate * spread.low / spread.middle, rate * spread.high / spread.middle


def memory_figure(measured: list[tuple[str, Profile]]) -> Figure | None:
    """Return the memory of all trainings together by their number, on the device and on the host; None if it was not
    measured."""
    plot = figure(yaxis_title="GiB, all trainings together")
    rows, numbers = [], set()
    for run, profile in measured:
        prefix = f"{run}: " if len(measured) > 1 else ""
        for way in profile.ways:
            for field, where, dash in (("device_gib", "GPU", "solid"), ("host_gib", "host", "dot")):
                points = [(p.n, p.n * gib) for p in profile.of(way) if (gib := getattr(p, field)) is not None]
                if not points:
                    continue
                plot.add_scatter(
                    x=[n for n, _ in points],
                    y=[gib for _, gib in points],
                    name=f"{prefix}{profile_view.NAMES[way]}, {where}",
                    mode="lines+markers",
                    line={"color": profile_view.COLORS[way], "dash": dash},
                )
                numbers |= {n for n, _ in points}
                rows += [(run, way, where, n, gib, gib / n) for n, gib in points]
    if not rows:
        return None
    at_once_axis(plot, numbers)
    plot.update_yaxes(rangemode="tozero")
    says = "Memory of the host without what trainings share."
    table = Table(("run", "way", "memory of the", "at once", "GiB", "GiB for each"), rows)
    return Figure("memory-curve", "Memory by the number of trainings at once", plot, says, table)


def errors(intervals: Sequence[tuple[float, float, float]]) -> dict[str, Any]:
    """Return Plotly's error bars. intervals: middle, lower and upper end of each point; an end that is not known is 0
    or infinite, and has no bar."""
    up = [max(0.0, high - middle) if math.isfinite(high) else 0.0 for middle, _, high in intervals]
    down = [max(0.0, middle - low) if low > 0 else 0.0 for middle, low, _ in intervals]
    return {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.5, "width": 4}


def at_once_axis(plot: Any, numbers: Iterable[int]) -> None:
    """Give a figure the logarithmic axis of trainings at once, labelled with measured numbers."""
    shown: list[int] = []
    for number in sorted(numbers):
        if not shown or number >= FEWEST_APART * shown[-1]:
            shown.append(number)
    plot.update_xaxes(
        type="log", title="trainings at once on one device", tickvals=shown, ticktext=[str(n) for n in shown]
    )


def rate_axis(plot: Any) -> None:
    """Give a figure of rates an axis from zero, or a logarithmic one where they are far apart."""
    rates = [rate for trace in plot.data for rate in trace.y if rate]
    far = bool(rates) and max(rates) > FAR_APART * min(rates)
    plot.update_yaxes(**({"type": "log"} if far else {"rangemode": "tozero"}))
