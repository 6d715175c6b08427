"""The report of a production training: curves, throughput of each GPU, readings, configuration."""

from __future__ import annotations

from raygpu.cli.formatting import duration, hyperparameters, sentences, throughput
from raygpu.cli.report import gpu_figures
from raygpu.cli.report.content import Page, Section, Table, configuration, given, test_facts
from raygpu.cli.report.curve_figures import curve_figures
from raygpu.cli.report.sweep_page import NO_TIMELINE
from raygpu.cli.report.time_figures import wall_time
from raygpu.cli.under_use_view import under_use_lines
from raygpu.records.run_data import RunData


def training_page(run: RunData) -> Page:
    """Return the report of a production training."""
    code = run.config.get("experiment", "")
    kind = ", on synthetic data: the scores mean nothing" if run.summary["data"] == "synthetic" else ""
    figures, time = curve_figures(run), wall_time([run])
    sections = [
        _outcome(run),
        Section("curves", "Curves", [] if figures else [NO_TIMELINE], figures=figures),
        _gpus(run),
        Section("time", "Time", figures=given(time)),
        configuration(run.config),
    ]
    return Page(run.name, f"Training of {code}{kind}", _facts(run), [section for section in sections if section])


def _facts(run: RunData) -> list[tuple[str, str]]:
    summary = run.summary
    best = summary["best"]
    facts = [(f"best {run.config.get('metric', 'score')}", "none" if best is None else f"{best['score']:.6g}")]
    facts += [("at epoch", str(best["epoch"]))] if best is not None else []
    facts += test_facts(summary, run.config.get("metric", "loss"))
    facts += [("epochs", f"{summary['epochs']} of {run.config.get('epochs')}"), ("took", duration(summary["wall_s"]))]
    rate = summary["samples_per_s"]
    facts += [("throughput", throughput(rate))] if rate is not None else []
    return [*facts, ("workers", str(summary["workers"]))]


def _outcome(run: RunData) -> Section:
    summary = run.summary
    rows = [
        ("epochs", run.config.get("epochs"), summary["epochs"]),
        ("workers", run.config.get("workers"), summary["workers"]),
        ("global batch (samples)", run.config.get("global_batch"), summary["global_batch"]),
        ("starts after a lost worker", run.config.get("max_failures"), summary["retries"]),
    ]
    metrics = Table(("metric", "last epoch"), list(summary["metrics"].items()), "metrics of the last epoch")
    notes = [f"Hyper-parameters: {hyperparameters(summary['hyperparameters'])}."]
    if summary["source"].get("sweep"):
        notes.append(f"From trial {summary['source'].get('trial_id')} of the sweep {summary['source']['sweep']}.")
    if summary["tracking"].get("status") == "interrupted":
        notes.append(f"Interrupted; go on with: {run.folder.resumed_by('train')}")
    if summary["checkpoint"] is not None:
        notes.append(f"Its model: {summary['checkpoint']}")
    return Section(
        "outcome", "Plan and outcome", notes, [Table(("", "configured", "happened"), rows, "plan and outcome"), metrics]
    )


def _gpus(run: RunData) -> Section:
    rates = [gpu["samples_per_s"] for gpu in run.summary["gpus"]]
    total = sum(rate for rate in rates if rate is not None)
    rows = [
        (f"GPU {gpu['index']}", gpu["name"], rate, 100 * rate / total if rate is not None and total else None)
        for gpu, rate in zip(run.summary["gpus"], rates, strict=True)
    ]
    table = Table(("GPU", "name", "samples/s", "% of all"), rows, "in the time of training alone")
    notes = sentences(under_use_lines(run.under_used(), run.kind, run.config))
    return Section("gpus-section", "GPUs", notes, [table], gpu_figures.reading_figures(run))
