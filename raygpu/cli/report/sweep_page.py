"""The report of a sweep: plan against outcome, trials, curves, hyper-parameters, GPUs, time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from raygpu.cli.formatting import duration, hyperparameters, score_text, sentences, throughput
from raygpu.cli.report import gpu_figures
from raygpu.cli.report.content import Page, Section, Table, configuration, given, test_facts
from raygpu.cli.report.curve_figures import best_so_far, curve_figures
from raygpu.cli.report.front_figure import front_figures
from raygpu.cli.report.population_figures import is_population, population_section
from raygpu.cli.report.search_figures import search_figures
from raygpu.cli.report.set_figures import sets_section
from raygpu.cli.report.time_figures import wall_time
from raygpu.cli.sweep_ending import cut_short_line, out_of_time
from raygpu.cli.under_use_view import under_use_lines
from raygpu.records.device import SIMULATED
from raygpu.records.run_data import RunData
from raygpu.records.trials_csv import TrialRow

NUM_BEST = 10
"""Number of trials in the table of the best ones."""
IN_ARRAYS = {
    "setup": "load of the code",
    "imports": "imports",
    "members": "making of the members",
    "probe": "choice of the width",
    "train": "training",
    "data": "waiting for samples",
    "evaluation": "evaluation",
    "other": "audits",
    "checkpoints": "checkpoints",
    "population": "comparisons and takeovers of the population",
}
"""Words for what fused arrays do."""
NO_TIMELINE = "This run has no timeline.jsonl: its folder could not be written."


def sweep_page(run: RunData) -> Page:
    """Return the report of a sweep."""
    sections = [
        _outcome(run),
        _best(run),
        *_front(run),
        _curves(run),
        _search(run),
        population_section(run),
        _gpus(run),
        _time(run),
        _trials(run),
        configuration(run.config),
    ]
    summary = run.summary
    kind = "synthetic data: the scores mean nothing" if summary["data"] == "synthetic" else f"{summary['mode']} mode"
    code = run.config.get("experiment") or run.config.get("function") or run.config.get("command") or ""
    return Page(run.name, f"Sweep of {code}, {kind}", _facts(run), [section for section in sections if section])


def _facts(run: RunData) -> list[tuple[str, str]]:
    summary = run.summary
    best = summary["best"]
    shown = "none" if best is None else score_text(best["score"], best.get("standard_error"))
    facts = [(f"best {summary['metric']}", shown)]
    if best is not None:
        facts.append(("best set", best["set_id"]) if "set_id" in best else ("best trial", best["trial_id"]))
    facts += test_facts(summary, summary["metric"])
    facts += [("sets", f"{summary['num_sets']:,}")] if "num_sets" in summary else []
    facts += [("trials", f"{summary['num_trials']:,}"), ("training took", duration(summary["wall_s"]))]
    rates = [gpu["samples_per_s"] for gpu in summary["gpus"] if gpu["samples_per_s"] is not None]
    facts += [("throughput", throughput(sum(rates)))] if rates else []
    simulated = ", simulated" if any(gpu["name"] == SIMULATED for gpu in summary["gpus"]) else ""
    return [*facts, ("GPUs", f"{len(summary['gpus'])}{simulated}")]


def _outcome(run: RunData) -> Section:
    """Return the plan against what happened."""
    summary = run.summary
    rows: list[tuple[Any, ...]] = [("trials", run.num_planned, summary["num_trials"])]
    predicted = summary["predicted"]
    if predicted:
        rows.append(("seconds", predicted["wall_s"][predicted["chosen"]], summary["wall_s"]))
        gib = predicted["memory_gib"][predicted["chosen"]]
        used = [gpu["memory_gib"] for gpu in summary["gpus"] if gpu["memory_gib"] is not None]
        rows.append(("memory in use (GiB)", gib, max(used) if used else None))
    at_once = summary["plan"].get("trials_per_gpu")
    table = gpu_figures.occupancy(run)
    if at_once is not None and table.rows:
        rows.append(("most processes at once on a GPU", at_once, max(row[4] for row in table.rows)))
    counts = [(name, summary[key]) for name, key in _COUNTS if summary.get(key)]
    tables = [
        _plan(summary["plan"]),
        Table(("", "planned", "happened"), rows, "plan and outcome"),
        Table(("trials", "number"), counts, "how the trials ended"),
    ]
    if len(predicted.get("wall_s", {})) > 1:
        ways = [(way, seconds, way == predicted["chosen"]) for way, seconds in predicted["wall_s"].items()]
        cells = [(way, seconds, "taken" if chosen else "") for way, seconds, chosen in ways]
        tables.append(Table(("way", "predicted seconds", ""), cells, f"ways to run it, by {predicted['source']}"))
    notes = [MODES.get(summary["mode"], "")]
    if summary["common_failure"] is not None:
        notes.append(f"Ended early: the first trials all failed alike ({summary['common_failure']}).")
    if summary.get("out_of_time"):
        notes.append(out_of_time(summary, run.folder))
    elif summary["interrupted"]:
        notes.append(f"Interrupted, with {summary['interrupted']} trials under way: {run.folder.resumed_by('sweep')}")
    return Section("outcome", "Plan and outcome", notes, tables)


MODES = {
    "process": "Process mode: each trial was trained in a process of its own, several of them side by side on a GPU.",
    "fused": "Fused mode: trials of one shape were trained as arrays, each one program; the others in processes.",
    "split": "Split mode: each process trained several trials on TensorFlow's logical devices.",
}
"""Sentence on each mode of a sweep."""
_COUNTS = (
    ("finished", "completed"),
    ("diverged", "diverged"),
    ("stopped early", "stopped_early"),
    ("failed", "failed"),
    ("interrupted", "interrupted"),
    ("left out: repeats of sets that were stopped or clearly worse", "left_out"),
    ("went on after a lost worker", "retries"),
    ("went on with a larger share after running out of memory", "out_of_memory"),
)


def _plan(plan: Mapping[str, Any]) -> Table:
    """Return the plan's shares, a row for each type of GPU."""
    parts = plan.get("devices", [plan])
    rows = [
        (part.get("device", "all GPUs"), part.get("trials_per_gpu"), part.get("fraction"), part.get("reason"))
        for part in parts
    ]
    members = f", at most {plan['members']} trials in each" if "members" in plan else ""
    return Table(("GPUs", "processes at once on a GPU", "share", "why"), rows, f"the plan{members}")


def _best(run: RunData) -> Section:
    best = run.ranked()[:NUM_BEST]
    if not best:
        return Section("best", "Best trials", [f"No trial has a finite {run.summary['metric']}."])
    command = (run.summary["best"] or {}).get("command_line") or run.folder.promoted_by()
    if run.sets:
        section = sets_section(run, command)
        return replace(section, notes=[*_cut_short(run), *section.notes])
    began = ", which began with" if is_population(run) else " with"
    note = f"Best: {best[0].trial_id}{began} {hyperparameters(best[0].hyperparameters)}. To train it again:"
    return Section("best", "Best trials", [*_cut_short(run), note], [_table(run, best, "by score")], code=command)


def _cut_short(run: RunData) -> list[str]:
    """Return a sentence on a best trial that ended before its last epoch; none of another one."""
    best = run.summary["best"]
    if not (best or {}).get("ended"):
        return []
    line = cut_short_line(best)
    return [f"{line[:1].upper()}{line[1:]}."]


def _front(run: RunData) -> list[Section]:
    """Return the section on several metrics; none for a sweep with one."""
    figures = front_figures(run)
    return [Section("front", "Pareto front", figures=figures)] if figures else []


def _table(run: RunData, trials: list[TrialRow], caption: str) -> Table:
    names = list(dict.fromkeys(name for row in trials for name in row.hyperparameters))
    header = ("trial", str(run.summary["metric"]), "status", "epochs", "samples/s", "GPU", *names)
    rows = [
        (
            row.trial_id,
            row.score,
            row.status,
            row.epochs,
            row.samples_per_s,
            row.gpu,
            *(row.hyperparameters.get(name) for name in names),
        )
        for row in trials
    ]
    return Table(header, rows, caption)


def _curves(run: RunData) -> Section:
    reached = best_so_far([run])
    figures = [*curve_figures(run), *given(reached)]
    return Section("curves", "Curves", [] if figures else [NO_TIMELINE], figures=figures)


def _search(run: RunData) -> Section:
    figures, notes = search_figures(run)
    if is_population(run) and figures:
        notes = ["The values are those at each trial's start; in a population they change.", *notes]
    return Section("hyperparameters", "Hyper-parameters", notes, figures=figures)


def _gpus(run: RunData) -> Section:
    header = ("GPU", "name", "samples/s", "mean memory (GiB)", "time with any kernel (%)")
    rows = [
        (f"GPU {gpu['index']}", gpu["name"], gpu["samples_per_s"], gpu["memory_gib"], gpu["util_pct"])
        for gpu in run.summary["gpus"]
    ]
    line = gpu_figures.timeline(run)
    figures = [*given(line), *gpu_figures.reading_figures(run)]
    notes = sentences(under_use_lines(run.under_used(), run.kind, run.config))
    return Section("gpus-section", "GPUs", notes, [Table(header, rows, "over the whole run")], figures)


def _time(run: RunData) -> Section:
    figure = wall_time([run])
    arrays = [(IN_ARRAYS.get(what, what), seconds) for what, seconds in run.summary.get("arrays_s", {}).items()]
    folded = [Table(("what", "seconds"), arrays, "Seconds of all fused arrays together")] if arrays else []
    return Section("time", "Time", [], [], given(figure), folded)


def _trials(run: RunData) -> Section:
    if not run.trials:
        return Section("trials", "All trials")
    ranked = run.ranked()
    others = [row for row in run.trials if not row.finite]
    table = _table(run, [*ranked, *others], f"all {len(run.trials):,} trials, the best first")
    return Section("trials", "All trials", folded=[table])
