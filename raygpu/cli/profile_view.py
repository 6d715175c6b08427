"""The view of a profile: its table, its verdict, and the comparison of several devices."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from raygpu.config.sections import Way
from raygpu.planning.confidence import spread_text
from raygpu.planning.plausibility import is_alone
from raygpu.planning.profiles import FALLING, FILLED, Point, Profile
from raygpu.planning.scaling_laws import Affine

NAMES: Mapping[Way, str] = {
    "process": "packed processes",
    "mps": "packed processes under MPS",
    "fused": "fused trainings",
    "split": "trainings on a split device",
    "threads": "threads of one process",
}
COLORS: Mapping[Way, str] = {
    "process": "#1f77b4",
    "mps": "#17becf",
    "fused": "#d62728",
    "split": "#9467bd",
    "threads": "#7f7f7f",
}
READINGS = {
    "used_gib": ("in use", "{:.1f} GiB", "memory in use (GiB)"),
    "util_pct": ("util", "{:.0f} %", "time with any kernel (%)"),
    "sm_util_pct": ("SM", "{:.0f} %", "SM activity (%)"),
    "sm_occupancy_pct": ("occupancy", "{:.0f} %", "SM occupancy (%)"),
    "dram_bandwidth_pct": ("DRAM", "{:.0f} %", "DRAM bandwidth (%)"),
    "power_w": ("power", "{:.0f} W", "power (W)"),
    "temperature_c": ("temp", "{:.0f} °C", "temperature (°C)"),
}
"""Readings that a GPU may support: title and format on the console, and title in the report, with the unit."""
QUESTION = "one GPU, several trainings on it, or several GPUs?"


def table(profile: Profile, epochs: int) -> list[str]:
    """Return a table with a line for each point, one way after the other. epochs: of the time per training."""
    columns = [name for name in READINGS if any(getattr(p, name) is not None for p in profile.points)]
    gpu = any(p.device_gib is not None for p in profile.points)
    head = ["way", "at once", "time per training", f"{profile.unit}/s in all", "gain", "spread", "host memory each"]
    rows = [[*head, *(["GPU memory each"] if gpu else []), *(READINGS[name][0] for name in columns)]]
    for way in profile.ways:
        for p in sorted((p for p in profile.points if p.way == way), key=lambda p: (p.n, p.compiled)):
            if p.samples_per_s is None:
                rows.append([p.label, str(p.n), p.fault or ""])
                continue
            row = [p.label, str(p.n), seconds(profile.time_per_training_s(p, epochs) or 0.0)]
            row += [f"{p.samples_per_s:,.0f}" if p.samples_per_s >= 100 else f"{p.samples_per_s:.3g}"]
            row += [f"{p.gain:.2f}x", _range(p), _gib(p.host_gib), *([_gib(p.device_gib)] if gpu else [])]
            rows.append(row + [_told(p, name) for name in columns])
    widths = [max(len(row[i]) for row in rows if i < len(row) and len(row) > 3) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=False)) for row in rows]


def doubts(profile: Profile) -> list[str]:
    """Return a line for each point that is not used, with the reason."""
    return [f"not used: {p.label}, {p.n} at once: {p.doubt}" for p in profile.points if p.doubt is not None]


def verdict(profile: Profile) -> list[str]:
    """Return the number of trainings that this device carries, and its meaning for buying or sharing GPUs, in two
    lines."""
    best = profile.best()
    if best is None or best.gain is None:
        faults = [f"{p.label}, {p.n} at once: {p.fault}" for p in profile.points if p.fault is not None]
        why = profile.notes or faults or doubts(profile)
        return [f"nothing could be measured: {'; '.join(why)}", f"{QUESTION} not known"]
    others = [
        f"{NAMES[way]} peak at {peak.n}: {_times(peak)}"
        for way in profile.ways
        if way != best.way and (peak := profile.best([way])) is not None and len(profile.of(way)) > 1
    ]
    made_up = " (synthetic data)" if profile.synthetic else ""
    step = ", their step compiled" if best.compiled else ""
    several = [p for p in profile.points if p.n > 1 and p.gain is not None and p.doubt is None]
    highest = profile.highest() or best
    if highest.n > best.n and FALLING * highest.spread.middle > best.spread.middle:
        others = [f"{highest.n} {NAMES[highest.way]} measured {_times(highest)}, within noise of it", *others]
    if not several:
        most = "memory ends with the second" if _memory_ended(profile) else "no more than one at once was measured"
        most = "what was measured at more than one at once is in doubt" if doubts(profile) else most
        first, last = f"one training on this device{made_up}: {most}", "not known"
        if _memory_ended(profile):
            last = "several GPUs: a second training has no room on this one"
    elif best.gain < FILLED <= highest.spread.middle:
        first, others = f"within noise: {highest.n} at once are not shown to do more than {best.n}{made_up}", others[:1]
        last = "not known: the spread is larger than the gain; measure on an idle machine, or with more --rounds"
    elif best.gain < FILLED:
        top = max(several, key=lambda p: p.gain or 0.0)
        reach = _times(top, 2)
        first = f"one training fills this device: {top.n} at once reach {reach} the throughput of one{made_up}"
        last = "several GPUs: a second training on this one gains nothing"
    elif best.n == 1:
        first = f"one training on this device, {best.label}: {_times(best)} the throughput of one alone{made_up}"
        last = "several GPUs: a second training on this one gains nothing"
    else:
        where = "per GPU" if profile.subject.device_gib is not None else "on this simulated GPU"
        first = f"{best.n} {NAMES[best.way]} {where}{step}: {_times(best)} the throughput of one{made_up}"
        last = f"several trainings on one GPU, up to {best.n}; with more trainings than that, several GPUs"
    return ["; ".join([first, *others]), f"{QUESTION} {last}"]


def laws(profile: Profile) -> list[str]:
    """Return the fitted curves of ways with enough points, a line each; a cost within the spread is called not
    measurable."""
    lines = []
    for way in profile.ways:
        measured = [p for p in profile.of(way) if p.samples_per_s]
        law, step = profile.law(way), profile.step()
        if way == "fused" and step is not None and len(measured) > 1:
            work_unit, size = ("a step", profile.batch_size) if profile.batch_size else ("a sample of each", 1)
            lines.append(f"{way}: {work_unit} takes {_step_costs(profile, step, size, [p.n for p in measured])}")
        elif way != "fused" and law is not None and len(measured) > 2:
            peak = "no peak" if math.isinf(law.peak) else f"peak at {max(1, round(law.peak)):,}"
            coefficients = {"contention": law.contention, "coherency": law.coherency}
            costs = ", ".join(
                f"{_percent(cost)} {name}" if round(100 * cost, 1) > 0 else f"{name} not measurable"
                for name, cost in coefficients.items()
            )
            lines.append(f"{way}: {costs} (USL), {peak}")
    return lines


def _step_costs(profile: Profile, step: Affine, size: int, widths: Sequence[int]) -> str:
    """Return the fixed cost of a fused array's step, and the cost per member, if either exceeds the spread."""
    low, high = min(widths), max(widths)
    has_fixed = profile.measurable(step.fixed, low)
    has_each = profile.measurable(step.each * high, high)
    if has_fixed and has_each:
        return f"{seconds(size * step.fixed)}, and {seconds(size * step.each)} a member"
    if has_each:
        return f"{seconds(size * step.each)} a member; a cost of its own is not measurable"
    return f"{seconds(size * step.at(high))} at {high} members; the cost of a member is not measurable"


def write_csv(profile: Profile, path: Path) -> None:
    """Write the points as CSV, a row for each."""
    names = [field.name for field in fields(Point)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        for point in profile.points:
            several = {"rounds": point.rounds, "references": point.references}
            row = asdict(point) | {name: " ".join(f"{rate:.6g}" for rate in each) for name, each in several.items()}
            writer.writerow({name: "" if value is None else value for name, value in row.items()})


def device_names(profiles: Sequence[Profile]) -> list[str]:
    """Return names that tell the profiles' devices apart: equal ones with memory, CPUs and date added."""
    subjects = [profile.subject for profile in profiles]
    names = [subject.device for subject in subjects]
    details = (
        [f"{subject.device_gib:g} GiB" if subject.device_gib is not None else "" for subject in subjects],
        [f"{subject.num_cpus:g} CPUs" for subject in subjects],
        [profile.measured_at for profile in profiles],
    )
    for detail in details:
        again = [names.count(name) > 1 for name in names]
        names = [f"{n}, {d}" if twice and d else n for n, d, twice in zip(names, detail, again, strict=True)]
    return names


def comparison(profiles: Sequence[Profile], units: Sequence[float | None]) -> list[str]:
    """Return a line for each device: its best way and its epochs per hour. units: the RGUs of each profile's device."""
    lines = []
    for profile, unit, device in zip(profiles, units, device_names(profiles), strict=True):
        best = profile.best()
        assert best is not None
        hourly = 3600 / (profile.time_per_training_s(best, 1) or 1.0)
        per_unit = f", {hourly / unit:,.0f} per RGU ({unit:.3g} of them)" if unit else ", RGU not known"
        progress_unit = "reports" if profile.num_train is None else "epochs"
        made_up = ", synthetic data" if profile.synthetic else ""
        speed = f"{_times(best)} one, {hourly:,.0f} {progress_unit} an hour{per_unit}{made_up}"
        lines.append(f"{device}: {best.n} {NAMES[best.way]}: {speed}")
    return lines


def seconds(value: float) -> str:
    """Return a duration with three digits, in the unit that fits."""
    if value < 1e-6:
        return f"{1e9 * value:.3g} ns"
    if value < 1e-3:
        return f"{1e6 * value:.3g} µs"
    if value < 1:
        return f"{1e3 * value:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value:,.0f} s"


def _memory_ended(profile: Profile) -> bool:
    return any(p.fault == "out of memory" for p in profile.points)


def _told(point: Point, name: str) -> str:
    value = getattr(point, name)
    return "" if value is None else READINGS[name][1].format(value)


def _percent(part: float) -> str:
    return f"{100 * part:.1f}".removesuffix(".0") + " %"


def _times(point: Point, digits: int = 1) -> str:
    """Return a gain with its spread: `16.9x (15.1 to 18.2)`."""
    assert point.gain is not None
    number = f"{{:.{digits}f}}"
    if point.gain_low is None or point.gain_high is None:
        return f"{number.format(point.gain)}x" + ("" if is_alone(point) else " (spread not known)")
    return f"{number.format(point.gain)}x" + ("" if is_alone(point) else spread_text(*_ends(point), number))


def _range(point: Point) -> str:
    """Return the gain's spread as a cell of the table."""
    if is_alone(point) or point.gain_low is None:
        return ""
    low, high = _ends(point)
    return f"{low:.2f} to {high:.2f}" + (" ?" if point.doubt is not None else "")


def _ends(point: Point) -> tuple[float, float]:
    return point.spread.low, point.spread.high


def _gib(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2f} GiB" if value >= 0.1 else f"{1024 * value:.1f} MiB"
