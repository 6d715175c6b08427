"""Figure of where a command's wall time went: its stages, and what the workers did while trials ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from raygpu.cli.report.content import SERIES, Figure, Table, figure
from raygpu.cli.report.gpu_figures import lanes
from raygpu.records.run_data import RunData

WORK = ("trials", "training")
"""Stages in which workers train."""
ACTIVITIES = {
    "joining": "start of workers",
    "train": "training",
    "waiting": "waiting for samples",
    "evaluation": "evaluation",
    "program": "the code's own loop",
    "checkpoints": "checkpoints",
    "population": "waiting for the population",
    "setup": "making of models",
    "other": "audits, compilation",
    "held": "hand-over",
    "empty": "slots without a trial",
}
"""Words for the activities of a slot in those stages."""
STAGES = {
    "start": "start, configuration",
    "data": "experiment, data",
    "dry_run": "dry runs",
    "tracking": "import of MLflow",
    "ray": "wait for Ray",
    "plan": "probe and plan",
    "trials": "trials",
    "training": "workers",
    **ACTIVITIES,
    "test": "score on the test data",
    "ray_end": "end of Ray",
    "files": "files of the result",
    "delivery": "delivery to MLflow",
}
"""Words for all rows of the figure, in the order of time."""
PARTS = {"imports": "setup", "members": "setup", "probe": "setup", "data": "waiting"}
"""Activities that have the row of another name: what fused arrays alone do, and what has the name of a stage."""
ROUNDING = 1e-6
BEFORE_AND_AFTER = "#8C979F"


def parts(run: RunData) -> dict[str, float]:
    """Return the seconds of the last start by stage, with the workers' stage divided by what the slots did.

    A slot's seconds are a mean over all slots, so that the parts add up to the stage.
    """
    seconds_by_part: dict[str, float] = {}
    for stage, seconds in (run.summary.get("stages_s") or {}).items():
        spent = run.summary.get("workers_s") if stage in WORK else None
        seconds_by_part |= slots(run, spent, seconds or 0.0) if spent else {stage: seconds or 0.0}
    return seconds_by_part


def slots(run: RunData, spent: Mapping[str, float | None], stage_s: float) -> dict[str, float]:
    """Return what the mean slot did in a stage, in seconds by activity.

    spent: seconds of all workers together. A production training is one slot: its workers do the same at a time.
    """
    last = run.timeline.starts[-1] if run.timeline.starts else 0.0
    stays = [replace(stay, gpu=None) for stay in run.timeline.occupancies if stay.began_s >= last]
    number = max(1, len(lanes(stays)))
    seconds: dict[str, float] = {}
    for activity, more in spent.items():
        name = PARTS.get(activity, activity)
        seconds[name] = seconds.get(name, 0.0) + (more or 0.0) / number
    held_s = sum(stay.ended_s - stay.began_s for stay in stays) / number if stays else stage_s
    seconds["held"] = max(0.0, min(held_s, stage_s) - sum(seconds.values()))
    if stays:
        seconds["joining"] = max(0.0, min(min(stay.began_s for stay in stays) - last, stage_s - held_s))
    seconds["empty"] = max(0.0, stage_s - sum(seconds.values()))
    return {name: value for name in ACTIVITIES if (value := seconds.get(name, 0.0)) > ROUNDING}


def wall_time(runs: Sequence[RunData]) -> Figure | None:
    """Return where the wall time of the last start went, a bar for each run; None of runs without stages."""
    timings = [(run.name, parts(run)) for run in runs if run.summary.get("stages_s")]
    if not timings:
        return None
    names = [name for name in STAGES if any(name in seconds for _, seconds in timings)]
    plot = figure(xaxis_title="seconds", barmode="group", bargap=0.25, showlegend=len(timings) > 1)
    for number, (run, seconds) in enumerate(timings):
        plot.add_bar(
            orientation="h",
            x=[seconds.get(name) for name in names],
            y=[STAGES[name] for name in names],
            name=run,
            marker_color=_colours(names) if len(timings) == 1 else SERIES[number % len(SERIES)],
            text=[f"{seconds[name]:.1f}" if name in seconds else "" for name in names],
            textposition="outside",
            cliponaxis=False,
        )
    plot.update_yaxes(automargin=True, type="category", autorange="reversed")
    height = 110 + len(names) * (14 + 14 * len(timings)) + (24 if len(timings) > 1 else 0)
    return Figure("stages", "Where the wall time went", plot, _says(*timings[0]), _table(timings, names), height)


def _colours(names: Sequence[str]) -> list[str]:
    """Return a colour for each row: the work itself, what it takes besides, and what is before and after it."""
    work, beside = {"train", "program", *WORK}, set(ACTIVITIES)
    return [SERIES[0] if name in work else SERIES[1] if name in beside else BEFORE_AND_AFTER for name in names]


def _says(run: str, seconds: Mapping[str, float]) -> str:
    total = sum(seconds.values())
    longest = max(seconds, key=lambda name: seconds[name])
    share = 100 * seconds[longest] / total if total else 0.0
    notes = " What runs in slots side by side is the mean of the slots." if "empty" in seconds else ""
    return f"{run}: {share:.0f} % of {total:.0f} s for: {STAGES[longest]}.{notes}"


def _table(known: Sequence[tuple[str, Mapping[str, float]]], names: Sequence[str]) -> Table:
    rows: list[tuple[Any, ...]] = []
    for run, seconds in known:
        total = sum(seconds.values()) or 1.0
        rows += [(run, STAGES[name], seconds[name], 100 * seconds[name] / total) for name in names if name in seconds]
    return Table(("run", "what", "seconds", "%"), rows, "seconds of the last start")
