"""The report of a comparison of placements: the time of an epoch, copies between devices, memory, the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from raygpu.cli import placement_view
from raygpu.cli.report.content import SERIES, Figure, Page, Section, Table, configuration, figure
from raygpu.records.run_data import RunData

Placements = Mapping[str, Mapping[str, Any]]


def place_page(run: RunData) -> Page:
    """Return the report of a comparison of placements."""
    summary, found = run.summary, run.summary["placements"]
    epochs, steps, memory = epoch_figure([(run.name, found)]), _step_figure(found), _memory_figure(found)
    logical = "logical devices of " if summary["logical"] else ""
    operations = [_operations(name, each) for name, each in found.items() if each["step"]]
    sections = [
        Section("verdict", "Verdict", list(summary["verdict"]), [table(found)]),
        Section("epochs", "Time of an epoch", _faults(found), figures=[epochs] if epochs is not None else []),
        Section("copies", "Copies and operations", figures=[steps] if steps is not None else [], folded=operations),
        Section("memory", "Memory", figures=[memory] if memory is not None else []),
        configuration(run.config),
    ]
    facts = [("fastest", summary["best"] or "none could be trained"), ("devices", str(summary["devices"]))]
    speedup = (found.get(summary["best"] or "") or {}).get("speedup")
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
        speedup, step = each["speedup"] or {}, each["step"] or {}
        parts = placement_view.parts(each["parts"]) if not each["stages"] else f"cut at {', '.join(each['stages'])}"
        rows.append(
            (
                name,
                fmean(each["epoch_s"]) if each["epoch_s"] else None,
                speedup.get("middle"),
                speedup.get("low"),
                speedup.get("high"),
                step.get("num_copies"),
                step["copied_bytes"] / 2**20 if step else None,
                _copy_percent(step),
                None if each["bubble"] is None else 100 * each["bubble"],
                each["loss"][-1] if each["loss"] else None,
                parts,
            )
        )
    header: tuple[str, ...] = (
        "placement",
        "s an epoch",
        "speed-up",
        "lower end",
        "upper end",
        "copies a step",
        "MiB a step",
    )
    header += ("% of device time in copies", "% of time devices wait", "loss", "parts")
    return Table(header, rows, "placements, by turns; intervals of 95 % confidence")


def _copy_percent(step: Mapping[str, Any]) -> float | None:
    return 100 * step["copy_s"] / step["device_s"] if step and step["device_s"] else None


def _faults(found: Placements) -> list[str]:
    return [f"{name}: {each['fault']}" for name, each in found.items() if each["fault"]]


def epoch_figure(runs: Sequence[tuple[str, Placements]]) -> Figure | None:
    """Return the seconds of an epoch of each placement, with each turn; None if none could be trained."""
    plot = figure(xaxis_title="seconds of an epoch", barmode="group", showlegend=len(runs) > 1)
    names = list(dict.fromkeys(name for _, found in runs for name, each in found.items() if each["epoch_s"]))
    rows = []
    for number, (run, found) in enumerate(runs):
        known = [name for name in names if found.get(name, {}).get("epoch_s")]
        turns = [found[name]["epoch_s"] for name in known]
        plot.add_bar(
            orientation="h",
            y=known,
            x=[fmean(seconds) for seconds in turns],
            name=run,
            offsetgroup=str(number),
            marker_color=SERIES[number % len(SERIES)],
            error_x={
                "type": "data",
                "symmetric": False,
                "array": [max(seconds) - fmean(seconds) for seconds in turns],
                "arrayminus": [fmean(seconds) - min(seconds) for seconds in turns],
                "color": "#8A8A8A",
            },
        )
        rows += [(run, name, number, s) for name in known for number, s in enumerate(found[name]["epoch_s"], 1)]
    if not rows:
        return None
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    numbers = Table(("run", "placement", "turn", "seconds"), rows, "each turn")
    says = "The mean of the turns; the bars reach from the fastest to the slowest one."
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
    known = {name: each["memory_gib"] for name, each in found.items() if each["memory_gib"]}
    if not known:
        return None
    devices = max(map(len, known.values()))
    plot = figure(xaxis_title="largest memory (GiB)", barmode="group")
    for device in range(devices):
        plot.add_bar(
            orientation="h",
            y=list(known),
            x=[gib[device] if device < len(gib) else None for gib in known.values()],
            name=f"device {device}",
            marker_color=SERIES[device % len(SERIES)],
        )
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    header = ("placement", *(f"GiB on device {device}" for device in range(devices)))
    rows = [(name, *gib, *[None] * (devices - len(gib))) for name, gib in known.items()]
    says = "Of logical devices on a CPU it is computed from what a step keeps."
    height = 140 + len(known) * (20 + 16 * devices)
    return Figure("memory-devices", "Memory of each device", plot, says, Table(header, rows, "largest memory"), height)


def _operations(name: str, each: Mapping[str, Any]) -> Table:
    step = each["step"]
    rows = [
        (operation["name"], 1e3 * operation["seconds"], 100 * operation["seconds"] / step["device_s"])
        for operation in step["operations"]
        if step["device_s"]
    ]
    return Table(("operation", "ms a step", "% of device time"), rows, f"{name}: the costliest operations")
