"""The report of a run without an end, which is under way or was killed: what its timeline has so far."""

from __future__ import annotations

from datetime import UTC, datetime

from raygpu.cli.report import gpu_figures
from raygpu.cli.report.content import Page, Section, Table, configuration, given
from raygpu.cli.report.curve_figures import best_so_far, curve_figures
from raygpu.config.command_names import typed
from raygpu.records.run_data import RunData

NUM_BEST = 20


def under_way_page(run: RunData) -> Page:
    """Return the report of a run that has not ended."""
    reached, line = best_so_far([run]), gpu_figures.timeline(run)
    until = datetime.fromtimestamp(run.ended_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    ended = sum(row.status != "under way" for row in run.trials)
    notes = [
        f"This run has not ended; the page has what it noted until {until} UTC. If it goes on: {typed('report')}"
        f" {run.folder} writes it anew. If it was killed: {run.folder.resumed_by(run.kind)}",
        "A trial that was stopped early counts as finished here. The timeline of the GPUs has the trials that have"
        " ended; hyper-parameters and counts come with the end.",
    ]
    ranked = [(row.trial_id, row.score, row.status, row.epochs) for row in run.ranked()[:NUM_BEST]]
    header = ("trial", str(run.config.get("metric", "score")), "status", "epochs")
    best = [Table(header, ranked, "the best trials so far")] if ranked else []
    figures = [*given(line), *gpu_figures.reading_figures(run)]
    sections = [
        Section("outcome", "So far", notes, best),
        Section("curves", "Curves", figures=[*curve_figures(run), *given(reached)]),
        Section("gpus-section", "GPUs", figures=figures),
        configuration(run.config),
    ]
    facts = [("trials ended", f"{ended:,} of {run.config.get('trials') or '?'}")] if run.trials else []
    facts += [(f"best {header[1]} so far", f"{ranked[0][1]:.6g}")] if ranked else []
    subtitle = f"{run.config.get('experiment') or run.config.get('command') or ''}, under way"
    return Page(run.name, subtitle, [*facts, ("noted until (UTC)", until)], [each for each in sections if each])
