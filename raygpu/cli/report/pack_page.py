"""The report of a pack: throughput and memory by the number of trainings at once, the verdict, and an advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from raygpu.cli import advice_view, profile_view
from raygpu.cli.report.content import Figure, Page, Section, Table, configuration, figure, given
from raygpu.cli.report.pack_figures import errors, memory_figure, throughput_figure
from raygpu.planning.advice import EFFICIENT, Advice, Scaling, Speedup
from raygpu.planning.confidence import Interval, spread_text
from raygpu.planning.plausibility import is_alone
from raygpu.planning.profiles import Point, Profile
from raygpu.records.run_data import RunData


def pack_page(run: RunData) -> Page:
    """Return the report of a pack."""
    profile = run.profile
    assert profile is not None
    epochs = int(run.config.get("epochs") or 1)
    curve, memory = throughput_figure([(run.name, profile)]), memory_figure([(run.name, profile)])
    sections = [
        _verdict(profile),
        _advice(profile, run.advice),
        Section("throughput", "Throughput", figures=given(curve)),
        Section("memory", "Memory", figures=given(memory)),
        Section("points", "All measurements", tables=[_points(profile, epochs)]),
        configuration(run.config),
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
    training_length = "a report" if profile.num_train is None else "1 epoch" if epochs == 1 else f"{epochs} epochs"
    facts = [("trainings at once", str(best.n)), ("way", best.label), ("over one training", f"{best.gain:.3g}x")]
    facts += [(f"a training of {training_length}", profile_view.seconds(seconds))] if seconds is not None else []
    return [*facts, ("measured at (UTC)", profile.measured_at.removesuffix("+00:00").replace("T", " "))]


def _verdict(profile: Profile) -> Section:
    notes = [*profile_view.verdict(profile), *profile_view.laws(profile), *profile_view.doubts(profile)]
    return Section("verdict", "Verdict", [*notes, *profile.notes])


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


def read_advice(noted: Mapping[str, Any], profile: Profile) -> Advice:
    """Return the advice in `advice.json`. profile: that it rests on."""
    scaling = noted["scaling"]
    speedups = tuple(Speedup(s["devices"], Interval(**s["times"])) for s in scaling["speedups"])
    scalability = Scaling(speedups, scaling["evidence"], tuple(scaling["notes"]))
    numbers = {name: noted[name] for name in ("devices", "surely", "at_most", "predicted")}
    return Advice(noted["answer"], profile.best() if noted["point"] is not None else None, scalability, **numbers)


def _advice(profile: Profile, noted: Mapping[str, Any] | None) -> Section:
    """Return the section of an advice with its evidence; empty without one. noted: the content of `advice.json`."""
    if noted is None:
        return Section("advice", "Advice")
    advice = read_advice(noted, profile)
    notes = [advice_view.verdict(profile, advice), *advice_view.evidence(profile, advice, kept=noted["kept"])]
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
