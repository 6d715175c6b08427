"""The lineage of a trial of a population: whose parameters it has, and the values that they were trained with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raygpu.search.trial_record import Change, changed


@dataclass(frozen=True, slots=True)
class LineageSegment:
    """Epochs in which one trial trained the parameters, with values that did not change."""

    first: int
    """First epoch, from 1."""
    last: int
    trial_id: str
    values: Mapping[str, Any]
    """Values of the hyper-parameters that are taken over."""


def lineage(
    trial_id: str, epoch: int, changes: Mapping[str, Sequence[Change]], begun: Mapping[str, Mapping[str, Any]]
) -> list[LineageSegment]:
    """Return the segments that led to a trial's parameters after an epoch, from the first epoch on.

    changes: each trial's, in the order of their epochs. begun: each trial's values at its start.
    """
    segments: list[LineageSegment] = []
    last = epoch
    while True:
        # A trial that gives its parameters after an epoch does not change after the same one.
        before = [change for change in changes.get(trial_id, ()) if change.epoch < last]
        first = before[-1].epoch + 1 if before else 1
        segments.append(LineageSegment(first, last, trial_id, changed(begun[trial_id], before)))
        if not before:
            return segments[::-1]
        last, trial_id = before[-1].epoch, before[-1].donor


def schedule(segments: Sequence[LineageSegment]) -> list[dict[str, Any]]:
    """Return the changes of values from one segment to the next, as a training's configuration lists them.

    Values that stay are left out, and segments in which all of them do.
    """
    changes: list[dict[str, Any]] = []
    present = dict(segments[0].values)
    for segment in segments[1:]:
        new = {name: value for name, value in segment.values.items() if present.get(name) != value}
        if new:
            changes.append({"epoch": segment.first, **new})
        present |= new
    return changes


def described(change: Change, before: Mapping[str, Any]) -> str:
    """Return a change as a line for a person. before: the trial's own values until then."""
    values = ", ".join(f"{name} {_short(before.get(name))} -> {_short(value)}" for name, value in change.values.items())
    return f"takes over {change.donor} after epoch {change.epoch}: {values}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
