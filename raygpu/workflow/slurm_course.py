"""Decide whether a Slurm job whose command ended is requeued, finished or failed."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from raygpu.errors import RaygpuError
from raygpu.records.run_directory import PROGRESS, RunDirectory
from raygpu.storage import Storage

Cause = Literal["clock", "preempted", "told", "stopped"]
"""Why a command was interrupted: the end of the wall time is near; Slurm gives the nodes to another job; Slurm ends the
job (scancel, a preemption without notice); raygpu submit stop."""
RESUMED = ("sweep", "train")
"""Commands that go on with --resume."""
INTERRUPTED = 130
BAD_INPUT = 2
STARTS_WITHOUT_PROGRESS = 2
"""Number of starts in a row without new results after which a job is not queued again."""


@dataclass(frozen=True, slots=True)
class Course:
    """Next step of a job."""

    again: bool
    """Whether it is queued again."""
    message: str = ""
    """Why it is not, where it could have been."""


def course(
    command: str,
    cause: Cause | None,
    exit_code: int,
    restarts: int,
    max_restarts: int,
    progress: Sequence[float],
) -> Course:
    """Return what becomes of a job whose command has ended.

    cause: why the command was interrupted; None if it was not. restarts: how often the job was queued again before.
    progress: amount of results at the end of each start, this one last.
    """
    if cause in (None, "stopped", "told") or exit_code in (0, 3, BAD_INPUT):
        return Course(False)
    if command not in RESUMED:
        return Course(False, f"{command} cannot go on from where it was; it needs a longer slurm.time")
    if restarts >= max_restarts:
        limit = (
            f"it was queued again {restarts} times (slurm.max_restarts)" if max_restarts else "slurm.requeue is false"
        )
        return Course(False, f"not done, and not queued again: {limit}")
    last = list(progress)[-STARTS_WITHOUT_PROGRESS - 1 :]
    if len(last) > STARTS_WITHOUT_PROGRESS and max(last) <= last[0]:
        return Course(
            False,
            f"not queued again: {STARTS_WITHOUT_PROGRESS} starts in a row had no new epoch; a longer slurm.time, or"
            " a shorter checkpoint_s, would help",
        )
    return Course(True)


def words_to_run(command: str, words: Sequence[str], folder: Path) -> list[str]:
    """Return the arguments of a start: those of the submission, or --resume if there is a run to go on with."""
    if (
        any(word == "--resume" or word.startswith("--resume=") for word in words)
        or command not in RESUMED
        or not _has_run(folder)
    ):
        return list(words)
    return ["--resume", str(folder), *_of_resume(words)]


def _has_run(folder: Path) -> bool:
    directory = RunDirectory(folder)
    return directory.config.is_file() and directory.run.is_file()


def _of_resume(words: Sequence[str]) -> list[str]:
    """Return the flags among the words that a run which goes on takes, too: where it runs, and how much it prints."""
    flags: list[str] = []
    for place, word in enumerate(words):
        if word in ("-q", "-v", "--quiet", "--verbose"):
            flags.append(word)
        elif word.startswith(("--tracking.", "--cluster.")):
            value = words[place + 1 : place + 2] if "=" not in word else []
            flags += [word, *(each for each in value if not each.startswith("--"))]
    return flags


def progress_of(folder: Path) -> float:
    """Return the amount of a run's results so far: epochs of all trials, or of the training.

    A training may be saved within an epoch. Its steps there count as a part below 1, which rises with their number.
    """
    directory = RunDirectory(folder)
    try:
        if directory.trials_csv.is_file():
            with directory.trials_csv.open(newline="") as file:
                return sum(float(row.get("epochs") or 0) for row in csv.DictReader(file))
        summary = directory.read_last_summary()
        return max(float((summary or {}).get("epochs") or 0), _saved(directory))
    except (OSError, ValueError, TypeError, csv.Error):
        return 0.0


def _saved(directory: RunDirectory) -> float:
    """Return the epochs of a training's last checkpoint that can be read, and the part of the one within which it was
    saved; 0 without one."""
    try:
        directory = directory.with_storage()
        directory.shared.require_answer()
        epochs = map(_epochs_of, directory.training_checkpoints())
        return next((each for each in epochs if each is not None), 0.0)
    except (OSError, RaygpuError):
        return 0.0


def _epochs_of(checkpoint: Storage) -> float | None:
    """Return the epochs after which a training was saved; None for a checkpoint that cannot be read."""
    try:
        saved = json.loads(checkpoint.read(PROGRESS))
        return float(saved["epoch"] + saved["step"] / (1 + saved["step"]))
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # it was being written
        return None


def usage_line(number: str, hours: float, num_nodes: int, gpus: Sequence[str], rgu_hours: float | None) -> str:
    """Return the line on what a job has used. hours: of all its starts. gpus: names of a node's GPUs."""
    nodes = f"{num_nodes} node{'s' * (num_nodes != 1)}"
    of = f" of {len(gpus)} GPU{'s' * (len(gpus) != 1)} each ({', '.join(dict.fromkeys(gpus))})" if gpus else ""
    worth = f", {rgu_hours:.3g} RGU-hours" if rgu_hours is not None else ""
    return f"Slurm job {number}: {hours:.3g} h on {nodes}{of}{worth}"
