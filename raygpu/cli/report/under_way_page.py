"""The report of a run without an end, which is under way or was killed: what its timeline has so far; and what is said
of one that was resumed and has noted nothing since."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from raygpu.cli.report import gpu_figures
from raygpu.cli.report.content import Page, Section, Table, configuration, given
from raygpu.cli.report.curve_figures import best_so_far, curve_figures
from raygpu.config.command_names import typed
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RESUMED_AT

NUM_BEST = 20


def under_way_page(run: RunData) -> Page:
    """Return the report of a run that has not ended."""
    reached, line = best_so_far([run]), gpu_figures.timeline(run)
    until = _utc(run.ended_s)
    ended = sum(row.status != "under way" for row in run.trials)
    notes = [
        f"This run has not ended; the page has what it noted until {until} UTC. If it goes on: {typed('report')}"
        f" {run.folder} writes it anew. If it was killed: {run.folder.resumed_by(run.kind)}",
        "A trial that was stopped early counts as finished here, unless an earlier end of the run tells of it. The"
        " timeline of the GPUs has the trials that have ended; counts, and hyper-parameters of trials that no earlier"
        " end tells of, come with the end.",
    ]
    rows = run.ranked()[:NUM_BEST]
    names = list(dict.fromkeys(name for row in rows for name in row.hyperparameters))
    ranked = [
        (row.trial_id, row.score, row.status, row.epochs, *(row.hyperparameters.get(name) for name in names))
        for row in rows
    ]
    header = ("trial", str(run.config.get("metric", "score")), "status", "epochs", *names)
    are_sets = run.per_set > 1
    caption = f"the best {'single trainings' if are_sets else 'trials'} so far"
    best = [Table(header, ranked, caption)] if ranked else []
    figures = [*given(line), *gpu_figures.reading_figures(run)]
    sections = [
        Section("outcome", "So far", notes, best),
        Section("curves", "Curves", figures=[*curve_figures(run), *given(reached)]),
        Section("gpus-section", "GPUs", figures=figures),
        configuration(run.config),
    ]
    planned = f"{run.num_planned:,}" if run.num_planned is not None else "?"
    facts = [("trials ended", f"{ended:,} of {planned}")] if run.trials else []
    of_one = " of a single training" if are_sets else ""
    facts += [(f"best {header[1]}{of_one} so far", f"{ranked[0][1]:.6g}")] if ranked else []
    subtitle = f"{run.config.get('experiment') or run.config.get('command') or ''}, under way"
    return Page(run.name, subtitle, [*facts, ("noted until (UTC)", until)], [each for each in sections if each])


def earlier_ends(runs: Sequence[RunData]) -> list[Section]:
    """Return the section that says which of these runs are shown as they ended before a resume; none without any."""
    notes = [
        f"{run.name} was resumed at {_utc(run.summary[RESUMED_AT])} UTC and has noted no epoch since: what is shown is"
        f" its end before. If it was killed: {run.folder.resumed_by(run.kind)}"
        for run in runs
        if RESUMED_AT in run.summary
    ]
    return [Section("resumed", "Resumed since", notes)] if notes else []


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S")
