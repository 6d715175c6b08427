"""`population.jsonl` of a sweep with a population: a line for each time that a trial took over another one's
parameters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from raygpu.records.whole_files import append_lines, write_whole
from raygpu.search.trial_record import Change


def add(path: Path, trial_id: str, change: Change) -> None:
    """Append a change while the sweep runs; a disk that takes no more loses the line until `write`."""
    with suppress(OSError):
        append_lines(path, _line(trial_id, change))


def write(path: Path, changes: Mapping[str, Sequence[Change]]) -> None:
    """Write all changes anew, in the order of their epochs. changes: by trial id."""
    entries = sorted((change.epoch, name, change) for name, each in changes.items() for change in each)
    write_whole(path, "".join(_line(name, change) for _, name, change in entries))


def read(path: Path) -> dict[str, list[Change]]:
    """Return each trial's changes in the order of their epochs; empty without the file. Damaged lines are left out."""
    by_trial: dict[str, dict[int, Change]] = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):
            fields: dict[str, Any] = json.loads(line)
            change = Change(int(fields["epoch"]), str(fields["donor"]), dict(fields["values"]))
            by_trial.setdefault(str(fields["trial"]), {})[change.epoch] = change
    return {name: [change for _, change in sorted(each.items())] for name, each in by_trial.items()}


def _line(trial_id: str, change: Change) -> str:
    values = {"trial": trial_id, "epoch": change.epoch, "donor": change.donor, "values": dict(change.values)}
    return json.dumps(values) + "\n"
