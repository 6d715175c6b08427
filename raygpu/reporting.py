"""`raygpu.report`, `raygpu.checkpoint` and `raygpu.load`: how a function or a script talks to its sweep.

They work in a function that a sweep calls and in its threads, in a script that a sweep starts and in the processes that
it starts, and outside of any sweep, where `report` prints a JSON line and nothing is kept.
"""

from __future__ import annotations

import json
import multiprocessing
import numbers
import os
import pickle
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

# A sweep tells a script through these where its reports and checkpoints go.
REPORT_VARIABLE = "RAYGPU_REPORT"
CHECKPOINT_VARIABLE = "RAYGPU_CHECKPOINT"
EPOCH_VARIABLE = "RAYGPU_EPOCH"
"""Variable with the number of reports of earlier starts of a script, with which this start goes on."""
FUNCTION_VARIABLE = "RAYGPU_FUNCTION"
"""Variable with the number of the process that a sweep's function runs in, for those that it starts."""
CHECKPOINT_FILE = "state.pickle"
OTHER_PROCESS = (
    "raygpu.report, raygpu.checkpoint and raygpu.load were called in a process that the function has started; they work"
    " in the function's own process, to which this one may return its metrics, and in all processes of a script"
)


class Channel(Protocol):
    """The receiver of reports."""

    def report(self, metrics: dict[str, float]) -> None:
        """Take in an epoch's metrics."""

    def checkpoint(self, state: Any) -> None:
        """Keep a state, anything that pickles, so that the trial can go on from it."""

    def load(self) -> Any | None:
        """Return the state of the last checkpoint; None if there is none."""


_thread = threading.local()
_num_reports = 0
"""Number of reports of this process, if it is a script's."""
_went_on_from: int | None = None
"""Epoch of the checkpoint that this script's process has loaded before its first report; None without one."""
_channel: Channel | None = None
_ended: WeakKeyDictionary[threading.Thread, Channel] = WeakKeyDictionary()
"""Channels of earlier trials, by threads that these have started and that may outlive them."""


def use(channel: Channel | None) -> None:
    """Send the reports of this thread, and of threads without a channel of their own, to `channel`.

    channel: None for the one that the environment names. A thread keeps its own: a function that outlives its trial
    cannot report into the next one.
    """
    global _channel
    _channel = _thread.channel = channel
    if channel is None:
        os.environ.pop(FUNCTION_VARIABLE, None)
    else:
        os.environ[FUNCTION_VARIABLE] = str(os.getpid())


def leave(channel: Channel, threads: Iterable[threading.Thread]) -> None:
    """End a trial's use of its channel, which these threads of the trial keep."""
    _ended.update(dict.fromkeys(threads, channel))
    use(None)


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
    """Return a metric as a float. Raises TypeError if it is not a number, and ValueError if it is too large."""
    if not callable(getattr(value, "item", None)) and callable(getattr(value, "numpy", None)):  # as of TensorFlow
        value = value.numpy()
    try:
        item = getattr(value, "item", None)
        value = item() if callable(item) else value
    except (ValueError, RuntimeError):  # of NumPy, of torch: more than one element
        shape = tuple(getattr(value, "shape", ()))
        raise TypeError(f"metric {name!r}: read values of shape {shape}; a number is wanted") from None
    if not isinstance(value, numbers.Real):
        raise TypeError(f"metric {name!r}: read {value!r}; a number is wanted")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"metric {name!r}: read a number that no float can hold") from None


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of a checkpoint, pickled at the call: later changes do not reach it."""

    epoch: int
    """Number of the report that belongs to the state: the next one, since `checkpoint` comes before `report`. 0 if the
    process of a script has made none yet, which may print its metrics."""
    state: bytes
    number: int = 0
    """Number of the script's checkpoint."""
    at_end: bool = False
    """Whether a function has saved it after its last report, and it is of that report's epoch."""

    @classmethod
    def of(cls, state: Any, num_reports: int) -> Kept:
        """Pickle a state. num_reports: reports before it."""
        return cls(num_reports + 1, pickle.dumps(state))

    @property
    def content(self) -> Any:
        """The state itself."""
        return pickle.loads(self.state)

    def is_of(self, epoch: int, epochs: int | None) -> bool:
        """Return whether the state is of this epoch, or of a later one after the last of `epochs`."""
        return self.epoch == epoch or (epoch == epochs and self.epoch > epoch)

    def dump(self, folder: Path) -> None:
        """Write the state into `folder` in one step: a reader finds the old or the new one, never half."""
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f"{CHECKPOINT_FILE}.{os.getpid()}"
        temporary.write_bytes(pickle.dumps((self.epoch, self.state, self.number, self.at_end)))
        temporary.replace(folder / CHECKPOINT_FILE)

    @classmethod
    def load(cls, folder: Path) -> Kept | None:
        """Return the state that `dump` wrote, or None."""
        file = folder / CHECKPOINT_FILE
        return cls(*pickle.loads(file.read_bytes())) if file.is_file() else None


def _current() -> Channel:
    channel: Channel | None = getattr(_thread, "channel", None) or _ended.get(threading.current_thread()) or _channel
    if channel is not None:
        return channel
    if REPORT_VARIABLE in os.environ:
        return _Script(Path(os.environ[REPORT_VARIABLE]), Path(os.environ[CHECKPOINT_VARIABLE]))
    parent = multiprocessing.parent_process()  # a program whose output the function reads has none
    if parent is not None and os.environ.get(FUNCTION_VARIABLE) == str(parent.pid):
        return _OfOtherProcess()
    return _OutsideOfSweeps()


class _Script:
    """Channel of a process that a sweep started: reports go through a named pipe, checkpoints into a folder."""

    def __init__(self, pipe: Path, folder: Path) -> None:
        self.pipe = pipe
        self.folder = folder

    def report(self, metrics: dict[str, float]) -> None:
        """Write the metrics to the pipe, as one line of JSON."""
        global _num_reports
        _num_reports += 1
        # One write of one line: lines of several processes do not mix below the pipe's atomic size (4096 bytes).
        line = json.dumps(metrics).encode() + b"\n"
        with open(self.pipe, "ab", buffering=0) as pipe:
            while line:  # a signal, as that of a pause, cuts a long write short
                line = line[pipe.write(line) :]

    def checkpoint(self, state: Any) -> None:
        """Write the state into the folder, with the number of its epoch if this process counts them."""
        last_state = Kept.load(self.folder)
        earlier = int(os.environ.get(EPOCH_VARIABLE, "0")) if _went_on_from is None else _went_on_from
        epoch = earlier + _num_reports + 1 if _num_reports else 0
        Kept(epoch, pickle.dumps(state), last_state.number + 1 if last_state else 1).dump(self.folder)

    def load(self) -> Any | None:
        """Return the state of the last checkpoint; None if there is none."""
        global _went_on_from
        state = Kept.load(self.folder)
        if state is None:
            return None
        if state.epoch and not _num_reports:  # a later load goes back to a state, and the number of reports does not
            _went_on_from = state.epoch
        return pickle.loads(state.state)


class _OfOtherProcess:
    """Channel of a process that a sweep's function has started by multiprocessing: it leads nowhere."""

    def report(self, metrics: dict[str, float]) -> None:
        """Raise RuntimeError."""
        raise RuntimeError(OTHER_PROCESS)

    def checkpoint(self, state: Any) -> None:
        """Raise RuntimeError."""
        raise RuntimeError(OTHER_PROCESS)

    def load(self) -> Any | None:
        """Raise RuntimeError."""
        raise RuntimeError(OTHER_PROCESS)


class _OutsideOfSweeps:
    """Channel outside of any sweep: a person runs the training by hand."""

    def report(self, metrics: dict[str, float]) -> None:
        """Print the metrics as a line of JSON."""
        print(json.dumps(metrics), file=sys.stdout, flush=True)

    def checkpoint(self, state: Any) -> None:
        """Keep nothing, outside of a sweep."""

    def load(self) -> Any | None:
        """Return None: nothing is kept outside of a sweep."""
        return None
