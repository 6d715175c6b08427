"""Packs, placements or balances side by side."""

from __future__ import annotations

from collections.abc import Sequence

from raygpu.cli.report import balance_page, pack_figures, place_page
from raygpu.cli.report.content import Section, Table, given
from raygpu.records.run_data import RunData


def pack_sections(runs: Sequence[RunData]) -> list[Section]:
    """Return the sections of several packs: the best point of each, throughput and memory."""
    measured = [(run.name, run.profile) for run in runs if run.profile is not None]
    rows = []
    for name, profile in measured:
        best = profile.best()
        spread = None if best is None else best.spread
        rows.append(
            (
                name,
                profile.subject.source,
                profile.subject.device,
                None if best is None else best.label,
                None if best is None else best.n,
                None if spread is None else spread.middle,
                None if spread is None else spread.low,
                None if spread is None else spread.high,
                None if best is None else best.samples_per_s,
                None if best is None else profile.time_per_training_s(best, 1),
            )
        )
    header = ("run", "code", "device", "way", "at once", "gain", "lower end", "upper end", "throughput/s", "s an epoch")
    subjects = {(profile.subject.source, str(profile.subject.hyperparameters)) for _, profile in measured}
    notes = [] if len(subjects) == 1 else ["The runs measured different trainings: compare gains, not throughputs."]
    curve, memory = pack_figures.throughput_figure(measured), pack_figures.memory_figure(measured)
    return [
        Section("outcome", "Outcomes", notes, [Table(header, rows, "the best point of each")]),
        Section("throughput", "Throughput", figures=given(curve)),
        Section("memory", "Memory", figures=given(memory)),
    ]


def place_sections(runs: Sequence[RunData]) -> list[Section]:
    """Return the sections of several comparisons of placements: the fastest of each, and the time of an epoch."""
    placements_by_run = [(run.name, run.summary["placements"]) for run in runs]
    rows = [
        (run.name, run.config.get("experiment"), run.summary["devices"], run.summary["device"], run.summary["best"])
        for run in runs
    ]
    outcomes = Table(("run", "code", "devices", "device", "fastest"), rows, "outcomes")
    epochs = place_page.epoch_figure(placements_by_run)
    tables = [place_page.table(each) for _, each in placements_by_run]
    each = [Table(table.header, table.rows, name) for (name, _), table in zip(placements_by_run, tables, strict=True)]
    return [
        Section("outcome", "Outcomes", [], [outcomes]),
        Section("epochs", "Time of an epoch", [], each, given(epochs)),
    ]


def balance_sections(runs: Sequence[RunData]) -> list[Section]:
    """Return the sections of several balances: their shares, and the throughput of their trainings."""
    rows = [
        (
            run.name,
            run.config.get("experiment"),
            run.summary["verdict"],
            balance_page.shares(run.summary),
            run.summary["global_batch"],
            *balance_page.speeds(run.summary).values(),
            (run.summary["balanced_over_equal"] or [None])[0],
        )
        for run in runs
    ]
    header: tuple[str, ...] = (
        "run",
        "code",
        "verdict",
        "shares",
        "global batch",
        "samples/s predicted",
        "balanced",
        "equal",
    )
    header += ("balanced over equal",)
    return [
        Section("outcome", "Outcomes", [], [Table(header, rows, "outcomes")]),
        Section("together", "All devices together", figures=[balance_page.together_figure(runs)]),
    ]


SECTIONS = {"pack": pack_sections, "place": place_sections, "balance": balance_sections}
"""Function that returns the sections of several runs, by the command that made them."""


def measured_comparison(runs: Sequence[RunData]) -> tuple[list[tuple[str, str]], list[Section]]:
    """Return the facts and the sections of several packs, placements or balances."""
    return [(run.name, _fact(run)) for run in runs], SECTIONS[runs[0].kind](runs)


def _fact(run: RunData) -> str:
    if run.kind == "pack":
        best = run.profile.best() if run.profile is not None else None
        return "not known" if best is None else f"{best.n} at once, {best.gain or 0.0:.3g}x"
    if run.kind == "place":
        return str(run.summary["best"] or "none")
    return balance_page.shares(run.summary)
