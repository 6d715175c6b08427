"""`raygpu.report`, `raygpu.checkpoint` and `raygpu.load`: how a function or a script talks to its sweep.

They work in a function that a sweep calls, in a script that a sweep starts (and in the processes that it starts), and
outside of any sweep, where `report` prints a JSON line and nothing is kept.
"""

from __future__ import annotations

import json
import numbers
import os
import pickle
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

# A sweep tells a script through these where its reports and checkpoints go.
REPORT_VARIABLE = "RAYGPU_REPORT"
CHECKPOINT_VARIABLE = "RAYGPU_CHECKPOINT"
CHECKPOINT_FILE = "state.pickle"


class Channel(Protocol):
    """The receiver of reports."""

    def report(self, metrics: dict[str, float]) -> None: ...

    def checkpoint(self, state: Any) -> None: ...

    def load(self) -> Any | None: ...


_thread = threading.local()
_num_reports = 0
"""Number of reports of this process, where it is a script's."""
_went_on_from = 0
"""The epoch that this script's process found in its checkpoint."""
_channel: Channel | None = None


def use(channel: Channel | None) -> None:
    """Send the reports of this thread, and of threads without a channel of their own, to `channel`.

    None goes back to what the environment says. A thread keeps its own: a function that outlives its trial cannot
    report into the next one.
    """
    global _channel
    _channel = _thread.channel = channel


def report(**metrics: float) -> None:
    """Report an epoch's metrics, `raygpu.report(loss=0.3, accuracy=0.9)`: numbers, or one-element tensors.

    A function may be ended here: when its sweep stops the trial early, this call does not return.
    """
    _current().report({name: number(name, value) for name, value in metrics.items()})


def checkpoint(state: Any) -> None:
    """Keep `state`, anything that pickles, so that the trial can go on from here after a stop.

    Call it before the `report` of the same epoch.
    """
    _current().checkpoint(state)


def load(default: Any = None) -> Any:
    """Return the state of the last `checkpoint`, in this or an earlier start of the trial; otherwise `default`."""
    state = _current().load()
    return default if state is None else state


def number(name: str, value: Any) -> float:
    """A metric as a float. Raises TypeError."""
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    if not isinstance(value, numbers.Real):
        raise TypeError(f"metric {name!r}: read {value!r}; a number is wanted")
    return float(value)


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of a checkpoint: pickled when it was called, so that later changes do not reach it."""

    epoch: int
    """The report that belongs to it: the one that followed, since `checkpoint` comes before `report`."""
    state: bytes

    @classmethod
    def of(cls, state: Any, num_reports: int) -> Kept:
        return cls(num_reports + 1, pickle.dumps(state))

    def dump(self, folder: Path) -> None:
        """Write it so that a reader finds the old or the new one, never half."""
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{CHECKPOINT_FILE}.{os.getpid()}"
        temporary.write_bytes(pickle.dumps((self.epoch, self.state)))
        temporary.replace(folder / CHECKPOINT_FILE)

    @classmethod
    def load(cls, folder: Path) -> Kept | None:
        """Return the state that `dump` wrote, or None."""
        file = folder / CHECKPOINT_FILE
        return cls(*pickle.loads(file.read_bytes())) if file.is_file() else None


def _current() -> Channel:
    channel: Channel | None = getattr(_thread, "channel", None) or _channel
    if channel is not None:
        return channel
    if REPORT_VARIABLE in os.environ:
        return _Script(Path(os.environ[REPORT_VARIABLE]), Path(os.environ[CHECKPOINT_VARIABLE]))
    return _Alone()


class _Script:
    """In a process that a sweep started: reports go through a named pipe, checkpoints into a folder."""

    def __init__(self, pipe: Path, folder: Path) -> None:
        self.pipe = pipe
        self.folder = folder

    def report(self, metrics: dict[str, float]) -> None:
        global _num_reports
        _num_reports += 1
        # One write of one line: lines of several processes do not mix below the pipe's atomic size (4096 bytes).
        with open(self.pipe, "ab", buffering=0) as pipe:
            pipe.write(json.dumps(metrics).encode() + b"\n")

    def checkpoint(self, state: Any) -> None:
        kept = Kept.load(self.folder)
        # A script that prints its metrics counts no reports here: each of its checkpoints then counts as one.
        before = _went_on_from + _num_reports if _num_reports else kept.epoch if kept else 0
        Kept.of(state, before).dump(self.folder)

    def load(self) -> Any | None:
        global _went_on_from
        kept = Kept.load(self.folder)
        if kept is None:
            return None
        _went_on_from = kept.epoch
        return pickle.loads(kept.state)


class _Alone:
    """Outside of any sweep: a person runs the training by hand."""

    def report(self, metrics: dict[str, float]) -> None:
        print(json.dumps(metrics), file=sys.stdout, flush=True)

    def checkpoint(self, state: Any) -> None:
        """Nothing is kept outside of a sweep."""

    def load(self) -> Any | None:
        return None
