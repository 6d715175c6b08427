"""Notes of what this user's processes train at the moment, for `raygpu gpus`: one file in each process' own folder.

A note goes with the process: its folder is deleted at its end, and passed over once it was killed.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from raygpu.planning.training_need import Need
from raygpu.records import scratch
from raygpu.records.whole_files import write_whole

FILE = "activity.json"


@dataclass(frozen=True, slots=True)
class Activity:
    """The training of a process."""

    run: str
    """Name of the sweep or training."""
    trials: tuple[str, ...]
    """Ids of the trials that train side by side; several in an array."""
    share: float | None = None
    """Share of the GPU that the process is given, 0 to 1."""
    samples_per_s: float | None = None
    """Throughput of all these trials together, in the last epoch; None where it is not known."""
    need: Need | None = None
    """Need of one more training of this kind; None where its profile is not known."""


def note(activity: Activity | None) -> None:
    """Note what this process trains from now on; None for nothing. A folder that cannot be written is no fault."""
    with contextlib.suppress(OSError):
        file = scratch.home() / FILE
        if activity is None:
            file.unlink(missing_ok=True)
            return
        write_whole(file, json.dumps(asdict(activity)), lasting=False)


def living() -> dict[int, Activity]:
    """Return the notes of this user's processes on this machine, by pid."""
    activities = {}
    for pid, folder in scratch.living().items():
        if (activity := _read(folder / FILE)) is not None:
            activities[pid] = activity
    return activities


def _read(file: Path) -> Activity | None:
    try:
        values = json.loads(file.read_text())
        need = values.get("need") and Need.read(values["need"])
        return Activity(**values | {"trials": tuple(values["trials"]), "need": need})
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, gone meanwhile, or another version's
        return None
