"""Several runs side by side: their outcomes, the best score by time, the time, what their configurations differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.report.content import Page, Section, Table, given
from raygpu.cli.report.curve_figures import best_so_far
from raygpu.cli.report.measured_comparison import measured_comparison
from raygpu.cli.report.time_figures import wall_time
from raygpu.cli.report.under_way_page import earlier_ends
from raygpu.errors import BadInput
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import KINDS

ALIKE = frozenset({"sweep", "train"})
"""Kinds of runs that have scores, curves and GPUs in common."""
UNLIKE = ("name",)
"""Keys of a configuration that differ always."""


def comparison_page(runs: Sequence[RunData]) -> Page:
    """Return the page of several runs: of one kind, or sweeps beside trainings. Raises BadInput for others."""
    if under_way := [run for run in runs if not run.ended]:
        raise BadInput(f"report: {under_way[0].folder} has not ended; only runs with an end stand side by side")
    kinds = {run.kind for run in runs}
    if len(kinds) > 1 and not kinds <= ALIKE:
        run_kinds = ", ".join(f"{run.name} is a {KINDS[run.kind]}" for run in runs)
        raise BadInput(f"report: {run_kinds}; runs of one kind stand side by side, or sweeps and trainings")
    if kinds <= ALIKE:
        facts, sections = [(run.name, _score(run)) for run in runs], _sections(runs)
    else:
        facts, sections = measured_comparison(runs)
    shown = [section for section in [*earlier_ends(runs), *sections, _differences(runs)] if section]
    return Page(f"{len(runs)} runs side by side", ", ".join(run.name for run in runs), facts, shown)


def _sections(runs: Sequence[RunData]) -> list[Section]:
    """Return the sections of sweeps and trainings."""
    reached, stages = best_so_far(runs), wall_time(runs)
    metrics = {run.config.get("metric") for run in runs}
    notes = [] if len(metrics) == 1 else ["The runs have different metrics, so their scores are no comparison."]
    return [
        Section("outcome", "Outcomes", notes, [_outcomes(runs)]),
        Section("curves", "Best score by time", figures=given(reached)),
        Section("time", "Time", figures=given(stages)),
        Section("gpus-section", "GPUs", tables=[_gpus(runs)]),
    ]


def _score(run: RunData) -> str:
    best = run.summary["best"]
    return "no score" if best is None else f"{run.config.get('metric', 'score')} {best['score']:.6g}"


def _outcomes(runs: Sequence[RunData]) -> Table:
    rows = []
    for run in runs:
        best, rates = run.summary["best"], [gpu["samples_per_s"] for gpu in run.summary["gpus"]]
        rows.append(
            (
                run.name,
                run.kind,
                run.summary.get("mode"),
                None if best is None else best["score"],
                run.summary.get("num_trials"),
                run.summary["wall_s"],
                run.summary["command_s"],
                sum(rate for rate in rates if rate is not None) if any(rates) else None,
                run.summary.get("rgu_hours"),
            )
        )
    header = ("run", "command", "mode", "best score", "trials", "wall s", "with start-up, s", "samples/s", "RGU-hours")
    return Table(header, rows, "outcomes")


def _gpus(runs: Sequence[RunData]) -> Table:
    rows = [
        (run.name, f"GPU {gpu['index']}", gpu["name"], gpu["samples_per_s"], gpu.get("memory_gib"))
        for run in runs
        for gpu in run.summary["gpus"]
    ]
    return Table(("run", "GPU", "name", "samples/s", "mean memory (GiB)"), rows, "each run's GPUs")


def _differences(runs: Sequence[RunData]) -> Section:
    flat = [_flat(run.config) for run in runs]
    keys = list(dict.fromkeys(key for each in flat for key in each))
    differing = [key for key in keys if len({each.get(key) for each in flat}) > 1 and key not in UNLIKE]
    rows = [(key, *(each.get(key) for each in flat)) for key in differing]
    title = "What differs in the configurations"
    if not rows:
        return Section("configuration", title, ["Nothing but the names."])
    return Section("configuration", title, tables=[Table(("key", *(run.name for run in runs)), rows, "by key")])


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = str(value)
    return flat
