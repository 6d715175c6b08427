"""The report of a comparison of placements: the time of an epoch, copies between devices, memory, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from raygpu.cli.formatting import interval
from raygpu.cli.placement_view import parts
from raygpu.cli.report.content import SERIES, Figure, Page, Section, Table, configuration, figure, given
from raygpu.planning.confidence import Interval
from raygpu.records.run_data import RunData

Placements = Mapping[str, Mapping[str, Any]]


def place_page(run: RunData) -> Page:
    """Return the report of a comparison of placements."""
    summary, placements = run.summary, run.summary["placements"]
    epochs, steps, memory = epoch_figure([(run.name, placements)]), _step_figure(placements), _memory_figure(placements)
    logical = "logical devices of " if summary["logical"] else ""
    operations = [_operations(name, each) for name, each in placements.items() if each["step"]]
    sections = [
        Section("verdict", "Verdict", list(summary["verdict"]), [table(placements), _parts(placements)]),
        Section("epochs", "Time of an epoch", _faults(placements), figures=given(epochs)),
        Section("copies", "Copies and operations", figures=given(steps), folded=operations),
        Section("memory", "Memory", figures=given(memory)),
        configuration(run.config),
    ]
    facts = [("fastest", summary["best"] or "none could be trained"), ("devices", str(summary["devices"]))]
    speedup = (placements.get(summary["best"] or "") or {}).get("speedup")
    facts += [("over one device", f"{speedup['middle']:.3g}x")] if speedup else []
    return Page(
        run.name,
        f"Placements of {run.config.get('experiment', '')} on {summary['devices']} {logical}{summary['device']}",
        facts,
        [section for section in sections if section],
    )


def table(found: Placements) -> Table:
    """Return a table with a row for each placement."""
    rows = []
    for name, each in found.items():
        step = each["step"] or {}
        rows.append(
            (
                name,
                fmean(each["epoch_s"]) if each["epoch_s"] else None,
                None if each["speedup"] is None else interval(Interval(**each["speedup"]), "x"),
                step.get("num_copies"),
                step["copied_bytes"] / 2**20 if step else None,
                _copy_percent(step),
                None if each["bubble"] is None else 100 * each["bubble"],
                each["loss"][-1] if each["loss"] else None,
            )
        )
    header: tuple[str, ...] = (
        "placement",
        "s an epoch",
        "speed-up",
        "copies a step",
        "MiB a step",
        "% of device time in copies",
    )
    header += ("% of time devices wait", "loss")
    return Table(header, rows, "placements, by turns; intervals of 95 % confidence")


def _parts(found: Placements) -> Table:
    rows = [
        (name, f"stages begin with {', '.join(each['stages'])}" if each["stages"] else parts(each["parts"]))
        for name, each in found.items()
    ]
    return Table(("placement", "parts"), rows, "what is where")


def _copy_percent(step: Mapping[str, Any]) -> float | None:
    return 100 * step["copy_s"] / step["device_s"] if step and step["device_s"] else None


def _faults(found: Placements) -> list[str]:
    return [f"{name}: {each['fault']}" for name, each in found.items() if each["fault"]]


def epoch_figure(runs: Sequence[tuple[str, Placements]]) -> Figure | None:
    """Return the seconds of an epoch of each placement, with each turn; None if none could be trained."""
    plot = figure(xaxis_title="seconds of an epoch", barmode="group")
    names = list(dict.fromkeys(name for _, found in runs for name, each in found.items() if each["epoch_s"]))
    rows = []
    for number, (run, placements) in enumerate(runs):
        timed_names = [name for name in names if placements.get(name, {}).get("epoch_s")]
        turns = [placements[name]["epoch_s"] for name in timed_names]
        plot.add_bar(
            orientation="h",
            y=timed_names,
            x=[fmean(seconds) for seconds in turns],
            name=run,
            offsetgroup=str(number),
            marker_color=SERIES[number % len(SERIES)],
        )
        dots = [(name, seconds) for name in timed_names for seconds in placements[name]["epoch_s"]]
        plot.add_scatter(
            y=[name for name, _ in dots],
            x=[seconds for _, seconds in dots],
            name="turns" if len(runs) == 1 else f"turns of {run}",
            offsetgroup=str(number),
            orientation="h",
            mode="markers",
            marker={"color": "white", "size": 7, "line": {"color": "#555", "width": 1.5}},
        )
        rows += [(run, name, turn, s) for name in timed_names for turn, s in enumerate(placements[name]["epoch_s"], 1)]
    if not rows:
        return None
    plot.update_layout(scattermode="group")
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    numbers = Table(("run", "placement", "turn", "seconds"), rows, "each turn")
    says = "Bars are means, dots the turns."
    height = 130 + len(names) * (20 + 24 * len(runs))
    return Figure("epoch-seconds", "Seconds of an epoch", plot, says, numbers, height)


def _step_figure(found: Placements) -> Figure | None:
    """Return the device time of an optimizer step, in copies between devices and in all else."""
    steps = {name: each["step"] for name, each in found.items() if each["step"]}
    if not steps:
        return None
    plot = figure(xaxis_title="ms of device time in a step", barmode="stack")
    names = list(steps)
    rest = [1e3 * (step["device_s"] - step["copy_s"]) for step in steps.values()]
    copies = [1e3 * step["copy_s"] for step in steps.values()]
    plot.update_layout(legend_traceorder="normal")
    plot.add_bar(orientation="h", y=names, x=rest, name="all else", marker_color=SERIES[0])
    plot.add_bar(orientation="h", y=names, x=copies, name="copies between devices", marker_color=SERIES[1])
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    rows = [
        (name, each + copy, copy, steps[name]["num_copies"], steps[name]["copied_bytes"] / 2**20)
        for name, each, copy in zip(names, rest, copies, strict=True)
    ]
    numbers = Table(("placement", "ms", "ms in copies", "copies", "MiB"), rows, "an optimizer step under the profiler")
    says = "The time of all devices together under the framework's profiler, which makes small steps slower."
    return Figure("step-time", "Device time of a step", plot, says, numbers, 140 + 44 * len(names))


def _memory_figure(found: Placements) -> Figure | None:
    """Return the largest memory of each device, by placement."""
    gib_by_placement = {name: each["memory_gib"] for name, each in found.items() if each["memory_gib"]}
    if not gib_by_placement:
        return None
    devices = max(map(len, gib_by_placement.values()))
    plot = figure(xaxis_title="largest memory (GiB)", barmode="group")
    for device in range(devices):
        plot.add_bar(
            orientation="h",
            y=list(gib_by_placement),
            x=[gib[device] if device < len(gib) else None for gib in gib_by_placement.values()],
            name=f"device {device}",
            marker_color=SERIES[device % len(SERIES)],
        )
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    header = ("placement", *(f"GiB on device {device}" for device in range(devices)))
    rows = [(name, *gib, *[None] * (devices - len(gib))) for name, gib in gib_by_placement.items()]
    says = "Of logical devices on a CPU it is computed from what a step keeps."
    height = 140 + len(gib_by_placement) * (20 + 16 * devices)
    return Figure("memory-devices", "Memory of each device", plot, says, Table(header, rows, "largest memory"), height)


def _operations(name: str, each: Mapping[str, Any]) -> Table:
    step = each["step"]
    rows = [
        (operation["name"], 1e3 * operation["seconds"], 100 * operation["seconds"] / step["device_s"])
        for operation in step["operations"]
        if step["device_s"]
    ]
    return Table(("operation", "ms a step", "% of device time"), rows, f"{name}: the costliest operations")
