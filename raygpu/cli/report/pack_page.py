"""The report of a pack: throughput and memory by the number of trainings at once, the verdict, and an advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from raygpu.cli import advice_view, profile_view
from raygpu.cli.report.content import Figure, Page, Section, Table, configuration, figure, given
from raygpu.cli.report.measured_figures import at_once_axis, errors, rate_axis
from raygpu.config.sections import Way
from raygpu.planning.advice import EFFICIENT, Advice, Scaling, Speedup
from raygpu.planning.confidence import Interval, spread_text
from raygpu.planning.plausibility import is_alone
from raygpu.planning.profiles import Point, Profile
from raygpu.records.run_data import RunData

DASHES = ("solid", "dash", "dot", "dashdot")
"""Lines of the profiles that stand side by side."""
OUT_OF_MEMORY = "out of memory"
NO_CONFIG = "Its folder has no configuration: it was measured by an earlier raygpu."


def pack_page(run: RunData) -> Page:
    """Return the report of a pack."""
    profile = run.profile
    assert profile is not None
    epochs = int(run.config.get("epochs") or 1)
    advice = None if run.advice is None else read_advice(run.advice, profile)
    curve, memory = throughput_figure([(run.name, profile)]), memory_figure([(run.name, profile)])
    sections = [
        _verdict(profile),
        _advice(profile, advice, run.advice or {}),
        Section("throughput", "Throughput", figures=given(curve)),
        Section("memory", "Memory", figures=given(memory)),
        Section("points", "All measurements", tables=[_points(profile, epochs)]),
        configuration(run.config, NO_CONFIG),
    ]
    device = profile.subject.device if profile.subject.device_gib is not None else "one simulated GPU, the CPU"
    kind = ", on synthetic data" if profile.synthetic else ""
    return Page(
        run.name,
        f"How many trainings of {profile.subject.source} one device carries: {device}{kind}",
        _facts(profile, epochs),
        [section for section in sections if section],
    )


def _facts(profile: Profile, epochs: int) -> list[tuple[str, str]]:
    best = profile.best()
    if best is None or best.gain is None:
        return [("trainings at once", "nothing could be measured"), ("measured at", profile.measured_at)]
    seconds = profile.time_per_training_s(best, epochs)
    what = "a report" if profile.num_train is None else "1 epoch" if epochs == 1 else f"{epochs} epochs"
    facts = [("trainings at once", str(best.n)), ("way", best.label), ("over one training", f"{best.gain:.3g}x")]
    facts += [(f"a training of {what}", profile_view.seconds(seconds))] if seconds is not None else []
    return [*facts, ("measured at (UTC)", profile.measured_at.removesuffix("+00:00").replace("T", " "))]


def _verdict(profile: Profile) -> Section:
    notes = [*profile_view.verdict(profile), *profile_view.laws(profile), *profile_view.doubts(profile)]
    return Section("verdict", "Verdict", [*notes, *profile.notes])


def throughput_figure(measured: list[tuple[str, Profile]]) -> Figure | None:
    """Return the throughput by the number of trainings at once, a curve for each way of each profile, with intervals;
    None without a measured point."""
    units = {profile.unit for _, profile in measured}
    unit = f"{'/'.join(sorted(units))}/s"
    plot = figure(yaxis_title=f"{unit}, all trainings together")
    rows, numbers = [], set()
    for place, (run, profile) in enumerate(measured):
        own = f"{run}: " if len(measured) > 1 else ""
        for way in profile.ways:
            points = [p for p in profile.of(way) if p.samples_per_s]
            if points:
                plot.add_scatter(
                    x=[p.n for p in points],
                    y=[p.samples_per_s for p in points],
                    error_y=errors([_interval(p) for p in points]),
                    name=f"{own}{profile_view.NAMES[way]}",
                    mode="lines+markers",
                    line={"color": profile_view.COLORS[way], "dash": DASHES[place % len(DASHES)]},
                )
            _odd_points(plot, profile, own, way)
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
    what = "reports" if profiles[0].num_train is None else "epochs of one training"
    titles = [f"{what} per hour, all together", *([f"{what} per hour and RGU"] if any(units) else [])]
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
        own = f"{run}: " if len(measured) > 1 else ""
        for way in profile.ways:
            for field, where, dash in (("device_gib", "GPU", "solid"), ("host_gib", "host", "dot")):
                points = [(p.n, p.n * gib) for p in profile.of(way) if (gib := getattr(p, field)) is not None]
                if not points:
                    continue
                plot.add_scatter(
                    x=[n for n, _ in points],
                    y=[gib for _, gib in points],
                    name=f"{own}{profile_view.NAMES[way]}, {where}",
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


def _points(profile: Profile, epochs: int) -> Table:
    """Return a table of all points; a column without any value is left out."""
    columns: dict[str, Callable[[Point], Any]] = {
        "way": lambda p: p.label,
        "at once": lambda p: p.n,
        "s for a training": lambda p: profile.time_per_training_s(p, epochs),
        f"{profile.unit}/s": lambda p: p.samples_per_s,
        "gain": _gain,
        "GiB of host, each": lambda p: p.host_gib,
        "GiB of GPU, each": lambda p: p.device_gib,
        "s of an evaluation": lambda p: p.evaluation_s,
        **{title: partial(_reading, name) for name, (_, _, title) in profile_view.READINGS.items()},
        "fault or doubt": lambda p: p.fault or p.doubt,
    }
    points = sorted(profile.points, key=lambda p: (profile.ways.index(p.way), p.compiled, p.n))
    columns = {title: of for title, of in columns.items() if any(of(p) is not None for p in points)}
    rows = [tuple(of(p) for of in columns.values()) for p in points]
    caption = f"{epochs} epochs a training" if profile.num_train is not None and epochs > 1 else "all points"
    return Table(tuple(columns), rows, caption)


def _reading(name: str, point: Point) -> float | None:
    value: float | None = getattr(point, name)
    return value


def _gain(point: Point) -> str | None:
    """Return a point's gain with its interval as text."""
    if point.gain is None:
        return None
    low, high = point.gain_low, point.gain_high
    spread = "" if is_alone(point) or low is None or high is None else spread_text(low, high, "{:.2f}")
    return f"{point.gain:.2f}x{spread}"


def read_advice(noted: Mapping[str, Any], profile: Profile) -> Advice | None:
    """Return the advice in `advice.json`; None if it is of another form. profile: that it rests on."""
    try:
        scaling = noted["scaling"]
        speedups = tuple(Speedup(s["devices"], Interval(**s["times"])) for s in scaling["speedups"])
        found = Scaling(speedups, scaling["evidence"], tuple(scaling["notes"]))
        numbers = {name: noted[name] for name in ("devices", "surely", "at_most", "predicted")}
        return Advice(noted["answer"], profile.best() if noted["point"] is not None else None, found, **numbers)
    except (KeyError, TypeError):
        return None


def _advice(profile: Profile, advice: Advice | None, noted: Mapping[str, Any]) -> Section:
    """Return the section of an advice with its evidence; empty without one."""
    if advice is None:
        return Section("advice", "Advice")
    notes = [advice_view.verdict(profile, advice), *advice_view.evidence(profile, advice, kept=noted.get("kept"))]
    speedups = advice.scaling.speedups
    if len(speedups) < 2:
        return Section("advice", "Advice", notes)
    bound = "at most " if advice.scaling.evidence == "one_device" else ""
    plot = figure(xaxis_title="devices of one training", yaxis_title=f"{bound}speed-up over one device")
    devices = [s.devices for s in speedups]
    plot.add_scatter(
        x=devices,
        y=[s.times.middle for s in speedups],
        error_y=errors([(s.times.middle, s.times.low, s.times.high) for s in speedups]),
        name="upper bound" if bound else "measured",
        mode="lines+markers",
        line={"color": "#0072B2"},
    )
    bounds = (("each as good as the first", 1.0, "dot"), (f"efficiency {EFFICIENT:g}", EFFICIENT, "dash"))
    for name, part, dash in bounds:
        y = [n * part if n > 1 else 1 for n in devices]
        plot.add_scatter(x=devices, y=y, name=name, mode="lines", line={"color": "#8A8A8A", "dash": dash})
    plot.update_xaxes(tickvals=devices)
    plot.update_yaxes(rangemode="tozero")
    rows = [(s.devices, s.times.middle, s.times.low, s.times.high, s.efficiency.middle) for s in speedups]
    table = Table(("devices", "speed-up", "lower end", "upper end", "efficiency"), rows, "with 95 % confidence")
    says = "One training on several devices, its batch unchanged."
    return Section(
        "advice", "Advice", notes, figures=[Figure("speed-ups", "Speed-up by the number of devices", plot, says, table)]
    )
