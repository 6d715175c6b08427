"""Describe a run in Markdown for MLflow's page of it: plan, outcome, best trial, and the commands to go on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import counted, duration, hyperparameters, score_text, throughput
from raygpu.config import ProblemConfig, SweepConfig, TrainConfig
from raygpu.config.command_names import typed
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest

MEASURED = {"pack": "Trainings that share a GPU", "place": "Placements", "balance": "Split of the batch"}
"""First words on a measurement, by its command."""
PLAN = "plan: "
"""First word of the plan's lines on the console."""


def sweep_description(
    config: SweepConfig, plan: Sequence[str], folder: RunDirectory, summary: Mapping[str, Any] | None
) -> str:
    """Return the description of a sweep. plan: its lines. summary: of its end; None while it runs."""
    parts = [f"**Sweep** of `{config.code_name}` by {config.metric}, the {_better(config)} wins."]
    commands: list[str] = []
    if summary is None:
        parts.append("It runs.")
        commands.append(f"{folder.resumed_by('sweep')}   # once it was interrupted")
    else:
        parts += _outcome(summary)
        if (best := summary["best"]) is not None:
            commands.append(best.get("command_line") or folder.promoted_by())
        commands += [folder.resumed_by("sweep")] if summary["interrupted"] or summary.get("out_of_time") else []
        commands.append(_command("report", folder))
    planned = "\n".join(f"- {line.removeprefix(PLAN)}" for line in plan)
    return "\n\n".join([*parts, *([f"**Plan**\n\n{planned}"] if plan else []), _commands(commands)])


def _outcome(summary: Mapping[str, Any]) -> list[str]:
    best = summary["best"]
    if best is None:
        first = f"**No trial has a finite {summary['metric']}.**"
    else:
        values = hyperparameters(best["hyperparameters"])
        score = score_text(best["score"], best.get("standard_error"))
        best_label = f"set** `{best['set_id']}`" if "set_id" in best else f"trial** `{best['trial_id']}`"
        mean = f" (mean of {best['repeats']} repeats)" if "set_id" in best else ""
        first = f"**Best {best_label}: {summary['metric']} {score}{mean}, with {values}."
        first += f" Trial `{best['trial_id']}` was {best['ended']}." if best.get("ended") else ""
    if (tested := ScoreOnTest.read(summary.get(TEST))) is not None:
        first += f" On the test data: {tested.line(summary['metric'])}."
    if summary["data"] == "synthetic":
        first += " The data is synthetic: the scores mean nothing."
    counts = [
        f"{summary[key]} {word}"
        for key, word in (
            ("completed", "finished"),
            ("stopped_early", "stopped early"),
            ("diverged", "diverged"),
            ("failed", "failed"),
            ("interrupted", "interrupted"),
        )
        if summary[key]
    ]
    rates = [gpu["samples_per_s"] for gpu in summary["gpus"] if gpu["samples_per_s"] is not None]
    speed = f", {throughput(sum(rates))} on {counted(len(rates), 'GPU')}" if rates else ""
    return [first, f"**Trials**: {', '.join(counts)}, in {duration(summary['wall_s'])}{speed}."]


def training_description(config: TrainConfig, folder: RunDirectory, summary: Mapping[str, Any] | None) -> str:
    """Return the description of a production training. summary: of its end; None while it runs."""
    source = config.source
    lineage = f", from trial `{source['trial_id']}` of the sweep `{source['sweep']}`" if "trial_id" in source else ""
    lineage += f", which was {source['ended']}" if "ended" in source else ""
    parts = [
        f"**Training** of `{config.code_name}`{lineage}.",
        f"**Hyper-parameters**: {hyperparameters(config.hyperparameters)}.",
    ]
    if summary is None:
        return "\n\n".join(
            [*parts, "It runs.", _commands([f"{folder.resumed_by('train')}   # once it was interrupted"])]
        )
    best, commands = summary["best"], [_command("report", folder)]
    if best is not None:
        parts.append(f"**Best** {config.metric} {best['score']:.6g} after epoch {best['epoch']}.")
    if (tested := ScoreOnTest.read(summary.get(TEST))) is not None:
        parts.append(f"On the test data: {tested.line(config.metric, 'the training')}.")
    parts.append(f"{summary['epochs']} of {config.epochs} epochs in {duration(summary['wall_s'])}.")
    if summary["tracking"].get("status") == "interrupted":
        commands.insert(0, folder.resumed_by("train"))
    return "\n\n".join([*parts, _commands(commands)])


def measurement_description(
    config: ProblemConfig, folder: RunDirectory, lines: Sequence[str], commands: Sequence[str] = ()
) -> str:
    """Return the description of a measurement. lines: its verdict. commands: to go on with, beside the report's."""
    bullets = "\n".join(f"- {line}" for line in lines if line)
    first = f"**{MEASURED[config.COMMAND]}** of `{config.code_name}`."
    return "\n\n".join([first, bullets, _commands([*commands, _command("report", folder)])])


def _better(config: SweepConfig) -> str:
    return "highest" if config.maximize else "lowest"


def _command(name: str, path: object) -> str:
    return f"{typed(name)} {shlex.quote(str(path))}"


def _commands(lines: Sequence[str]) -> str:
    return "\n".join(["**Go on**", "", "```sh", *lines, "```"])
