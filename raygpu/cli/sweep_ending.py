"""Lines at the end of a sweep: counts, where the results lie, and the next command to type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import duration
from raygpu.errors import kind
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.trial_files import FILES

NO_SCORE = ("diverged", "failed", "interrupted")
"""The summary's counts of trials without a score."""


def ending(
    summary: Mapping[str, Any],
    failures: Sequence[str],
    folder: RunDirectory,
    where: Sequence[str | None],
    interrupted: bool,
) -> list[str]:
    """Return the lines after the table of the best trials.

    summary: content of `summary.json`. failures: error of each failed trial in a line. where: lines on what to do
    about failures, and where to see curves and the report; None for what there is not. interrupted: whether trials are
    left to run.
    """
    lines = []
    if summary["best"] is not None and summary["data"] == "synthetic":
        lines.append("on synthetic data: these scores mean nothing")
    counts = [
        f"{summary['completed']} {'trainings ' if 'repeats' in summary else ''}finished",
        *([f"{summary['diverged']} diverged"] if summary["diverged"] else []),
        f"{summary['stopped_early']} stopped early",
        f"{summary['failed']} failed",
        *([f"{summary['interrupted']} interrupted"] if summary["interrupted"] else []),
        *([f"{summary['left_out']} left out"] if summary.get("left_out") else []),
    ]
    took = f"{duration(summary['wall_s'])}{_predicted(summary)}"
    if summary["command_s"] > summary["wall_s"]:  # not of a sweep that goes on: its trials' time counts all starts
        took += f", {duration(summary['command_s'])} with Ray's start"
    lines.append(f"{', '.join(counts)} in {took}; all of it in {folder}")
    if taken := summary.get("taken_over"):
        times = "once" if taken == 1 else f"{taken} times"
        lines.append(
            f"{times} a trial took over another one's parameters ({folder.population.name}); the table has each trial's"
            " last values, best.toml the values of the best one epoch by epoch"
        )
    if summary["common_failure"] is not None:
        lines.append(
            f"stopped: the first trials have all failed alike ({summary['common_failure']}); --no-fail-fast goes on"
        )
    if summary.get("out_of_time"):
        lines.append(out_of_time(summary, folder))
    if summary["failed"]:
        why = "" if summary["common_failure"] is not None else _commonest(failures)
        lines.append(f"why trials failed{why}: {folder.shared_trials}/<id>/error.txt")
        if not interrupted:
            lines.append(f"once the code is fixed, train them again by: {folder.resumed_by('sweep')} --retry failed")
            lines.append("if the configuration is at fault, start a new sweep: this one keeps its own")
    if summary["best"] is None:
        lines.append(_without_score(summary))
    else:
        if (tested := ScoreOnTest.read(summary.get(TEST))) is not None:
            lines.append(tested.line(summary["metric"]))
        lines += [cut_short_line(summary["best"])] if summary["best"].get("ended") else []
        lines += _best(summary["best"], folder)
    lines += [line for line in where if line is not None]
    if interrupted:
        lines.append(f"interrupted; go on with: {folder.resumed_by('sweep')}")
    return lines


def out_of_time(summary: Mapping[str, Any], folder: RunDirectory) -> str:
    """Return a line on a sweep that its time budget has ended."""
    begun = sum(summary[name] for name in ("completed", "diverged", "stopped_early", "failed", "interrupted"))
    return (
        f"time_budget_s is used up, with {summary['interrupted']} trials under way and {summary['num_trials'] - begun}"
        f" not begun; for as long again: {folder.resumed_by('sweep')}"
    )


def cut_short_line(best: Mapping[str, Any]) -> str:
    """Return a line on a best trial that ended before its last epoch. best: its part of the summary."""
    return (
        f"the best trial, {best['trial_id']}, was {best['ended']}: its score is of what it had reached, and a training"
        " with all epochs may come to a worse one"
    )


def _best(best: Mapping[str, Any], folder: RunDirectory) -> list[str]:
    """Return lines that say how to train the best trial again, and where the files of its script are."""
    if "command_line" not in best:
        best_label = f"the best set, {best['set_id']}," if "set_id" in best else "the best trial,"
        return [f"{best_label} to train it for production: {folder.promoted_by()}"]
    described = folder.shared / folder.best_toml.name
    lines = [f"the best trial, to run it again: {best['command_line']}", f"its hyper-parameters: {described}"]
    files = folder.trials / best["trial_id"] / FILES
    return [*lines, f"its files: {folder.shared_trials / best['trial_id'] / FILES}"] if files.is_dir() else lines


def _without_score(summary: Mapping[str, Any]) -> str:
    """Return a line that says why there is no best trial."""
    counts = ", ".join(f"{summary[name]} {name}" for name in NO_SCORE if summary[name])
    why = f" ({counts})" if counts else ""
    advice = "; a smaller learning rate, or clip_norm, may help" if summary["diverged"] else ""
    return f"no trial has a finite {summary['metric']}{why}, so there is no best trial{advice}"


def _commonest(failures: Sequence[str]) -> str:
    """Return the most common type of error, its count and its first line, as text."""
    if not failures:
        return ""
    commonest, count = Counter(map(kind, failures)).most_common(1)[0]
    line = next(line for line in failures if kind(line) == commonest)
    return f" ({count} of {len(failures)}: {line})"


def _predicted(summary: Mapping[str, Any]) -> str:
    """Return the plan's predicted time, for comparison; nothing for an interrupted sweep or without a prediction."""
    predicted = summary["predicted"]
    if not predicted or summary["interrupted"]:
        return ""
    return f" (predicted: {duration(predicted['wall_s'][predicted['chosen']])})"
