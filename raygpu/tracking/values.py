"""The form in which MLflow takes values: the points, tags and texts of a trial's results, within its limits."""

from __future__ import annotations

import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raygpu.config import ProblemConfig
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial

MAX_NAME, MAX_PARAM, MAX_TAG = 250, 6000, 8000
"""Maximum number of characters that MLflow accepts in a name, a parameter's value and a tag's value."""
ERROR_TAG = "raygpu.error"
"""Tag with the last lines of a failed trial's traceback."""
RUN_STATUS: Final[Mapping[str, str]] = {
    "waiting": "SCHEDULED",
    "running": "RUNNING",
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}
ENDINGS = ("raygpu.status", "raygpu.stopped", "raygpu.diverged", ERROR_TAG, "raygpu.best_epoch")
"""Tags that say how a run ended."""
SET_TAG = "raygpu.set"
"""Tag by which MLflow's pages group the repeats of a set."""
SET_SCORE, SET_ERROR = "set/score", "set/standard_error"
"""Metrics of each repeat's run that its set has in common: `SetRecord.metrics`."""
LONGEST_TITLE = 100
"""Maximum number of characters in the name of a trial's run."""


@dataclass(frozen=True, slots=True)
class MetricValue:
    """One value of one metric."""

    name: str
    value: float
    step: int
    time_ms: int
    """Milliseconds since 1970. MLflow keeps equal points once, so a repeated call must repeat its time."""


def points(result: EpochResult, time_ms: int) -> list[MetricValue]:
    """Return an epoch's numeric metrics, its throughput and the share of it that was spent on waiting for samples, as
    points; the epoch is the step."""
    values: dict[str, Any] = dict(result.metrics)
    if (rate := result.samples_per_s) is not None:
        values["samples_per_s"] = rate
    if result.waited_s is not None and result.train_s:
        values["waited_for_data"] = result.waited_s / result.train_s
    return [MetricValue(name, value, result.epoch, time_ms) for name, value in values.items() if _is_number(value)]


def final_points(record: TrialRecord, time_ms: int) -> list[MetricValue]:
    """Return the metrics of a trial's run at its end; its best epoch only where that one scores the trial."""
    values = {"rgu_hours": record.rgu_hours}
    if record.score_rule == "best" and not record.diverged:
        values |= {"best/score": record.scores.best, "best/epoch": record.best_epoch}
    return [MetricValue(name, value, 0, time_ms) for name, value in values.items() if value is not None]


def final_tags(record: TrialRecord) -> dict[str, Any]:
    """Return the tags of a trial's run that say how it ended."""
    tags: dict[str, Any] = {"raygpu.status": record.outcome}
    tags["raygpu.score"] = f"{record.score_rule} epoch"
    if record.best_epoch is not None:
        tags["raygpu.best_epoch"] = record.best_epoch
    if record.diverged:
        tags["raygpu.diverged"] = "true"
    if record.status == "interrupted":
        tags["raygpu.stopped"] = "interrupted"
    elif record.status == "stopped":
        tags["raygpu.stopped"] = record.reason or "stopped"
    if record.status == "failed" and record.error:
        tags[ERROR_TAG] = record.error[-MAX_TAG:]  # a traceback's last lines say most
    return tags


def set_tags(trial: Trial) -> dict[str, Any]:
    """Return the tags that say which set of hyper-parameters a trial repeats; none of a set that is trained once."""
    if trial.repeat is None:
        return {}
    fold = {} if trial.fold is None else {"raygpu.fold": trial.fold + 1}
    return {SET_TAG: trial.set_id, "raygpu.repeat": trial.repeat + 1, **fold}


def run_name(trial: Trial, names: Sequence[str]) -> str:
    """Return the name of a trial's run: its id and hyper-parameters, as `t0006 lr=0.27 hidden=256`.

    names: of the hyper-parameters that vary. Those that no longer fit are left out, with an ellipsis.
    """
    title = trial.trial_id
    for name in names:
        if name not in trial.hyperparameters:
            continue
        value = trial.hyperparameters[name]
        part = f" {name}={value:.3g}" if isinstance(value, float) else f" {name}={text(value)}"
        if len(title) + len(part) > LONGEST_TITLE - 2:
            return f"{title} \N{HORIZONTAL ELLIPSIS}"
        title += part
    return title


def tag_values(values: Mapping[str, Any]) -> dict[str, str]:
    """Return tags with names and texts that MLflow takes."""
    return {allowed_name(key): text(value)[:MAX_TAG] for key, value in values.items()}


def text(value: object) -> str:
    """Return a value as text that every store takes: NUL and lone surrogates, which databases refuse, escaped."""
    return str(value).replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode()


def allowed_name(name: str) -> str:
    """Return a name as MLflow allows it: letters, digits, `_-. :/`, and no path that leads upwards."""
    parts = [part for part in re.sub(r"[^/\w.\- :]", "_", str(name)).split("/") if part.strip(".")]
    return "/".join(parts)[:MAX_NAME].rstrip("/") or "_"


def distinct_name(name: str, taken: Collection[str]) -> str:
    """Return a name as MLflow allows it, with a number if that is taken."""
    key, number = allowed_name(name), 2
    while key in taken:
        key, number = f"{allowed_name(name)[: MAX_NAME - 4]}_{number}", number + 1
    return key


class MetricNames:
    """Names of metrics in MLflow: each metric has one of its own, in all runs that share this object."""

    def __init__(self, notes: list[str]) -> None:
        """notes: gets a line for each name with a number."""
        self._notes = notes
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, name: str) -> str:
        """Return a metric's name in MLflow. Threads may call it at once."""
        with self._lock:
            if name not in self._names:
                self._names[name] = distinct_name(name, self._names.values())
                if self._names[name] != allowed_name(name):
                    self._notes.append(f"MLflow: the metric {name} is called {self._names[name]} there")
            return self._names[name]


def _is_number(value: object) -> bool:
    try:
        float(value)  # type: ignore[arg-type] # whether it can be is the question
    except (TypeError, ValueError):
        return False
    return True


def as_params(values: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return parameters as MLflow takes them, and a line for each that has another name or a shorter text there.

    Two whose names MLflow would not tell apart get a number.
    """
    params: dict[str, str] = {}
    notes: list[str] = []
    for name, value in values.items():
        content, key = text(value), distinct_name(name, params)
        if key != name:
            notes.append(f"MLflow: the parameter {name} is called {key} there")
        if len(content) > MAX_PARAM:
            notes.append(
                f"MLflow: the parameter {name} is cut to its first {MAX_PARAM:,} of {len(content):,} characters"
            )
        params[key] = content[:MAX_PARAM]
    return params, notes


def flat(config: ProblemConfig) -> dict[str, Any]:
    """Return the configuration as MLflow parameters, by dotted name, without its `tracking` section, and without
    `script` where none is trained and starting points where there are none."""
    flat: dict[str, Any] = {}
    left_out = {"tracking", *(["script"] if config.command is None else [])}
    left_out |= set() if getattr(config, "start", ()) else {"start", "start_best"}
    for name, value in config.model_dump(exclude_none=True, exclude=left_out).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat
