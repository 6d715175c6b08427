"""The file in which writes wait for MLflow: a process that is killed leaves them to the next one.

A line is a JSON object with the checksum of its other fields. A line that does not match its checksum is moved to a
file of its own, and does not hold up the others.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any
from zlib import crc32

from raygpu.errors import TrackingError
from raygpu.records.whole_files import replacement
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking.pending_writes import Write

CHECKSUM = "crc32"
EPOCH = tuple(field.name for field in fields(EpochResult))
"""Fields of an epoch's result; `asdict` would copy the metrics, in every trial's every epoch."""


class Journal:
    """File of the waiting writes. Raises OSError where the disk takes no more; what the file holds then stays valid."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.damaged = 0
        """Number of lines that an earlier process left and that could not be read."""
        self.num_lines = 0
        """Number of writes in the file."""
        self._unsynced = False
        self._file: int | None = None
        self._cut = False
        """Whether the last line may be incomplete, because the disk was full."""

    @property
    def damaged_path(self) -> Path:
        """File of the lines that could not be read."""
        return self.path.with_suffix(".damaged.jsonl")

    def take_over(self) -> list[Write]:
        """Return the writes that an earlier process left, which stay here until delivered.

        A last line without an end was cut by the process' death, and is dropped. Raises TrackingError if the file
        cannot be read, or written anew.
        """
        if not self.path.is_file():
            return []
        try:
            writes, damaged = load(self.path)
            self.damaged = len(damaged)
            if damaged:
                with self.damaged_path.open("ab") as file:
                    file.writelines(damaged)
            if self.path.stat().st_size:  # without what was cut at its end, which the next write would be joined to
                self.rewrite(writes)
        except OSError as error:
            raise TrackingError(f"tracking: {self.path} cannot be read as waiting writes: {error.strerror}") from error
        return writes

    def add(self, write: Write) -> None:
        """Append a write and hand it to the operating system, so that it outlives this process."""
        file, data = self._opened(), (b"\n" if self._cut else b"") + _line(write)
        size, was_cut, self._cut = os.fstat(file).st_size, self._cut, True
        try:
            while data:
                data = data[os.write(file, data) :]
        except OSError:
            with suppress(OSError):  # half a line is no damage, since its caller has the write
                os.ftruncate(file, size)
                self._cut = was_cut
            raise
        self._cut = False
        self.num_lines += 1
        self._unsynced = True

    def sync(self) -> None:
        """Wait until the disk has what was added so far, so that it outlives the machine. Other threads may add."""
        if self._file is None or not self._unsynced:
            return
        self._unsynced = False  # before the disk is asked: what is added meanwhile needs another call
        copy = os.dup(self._file)
        try:
            os.fsync(copy)
        except OSError:
            self._unsynced = True
            raise
        finally:
            os.close(copy)

    def clear(self) -> None:
        """Empty the file, once all writes are delivered."""
        if self._file is not None or self.path.is_file():
            os.ftruncate(self._opened(), 0)
            self._cut, self.num_lines = False, 0

    def rewrite(self, waiting: Iterable[Write]) -> None:
        """Replace the content in one step: the old or the new one is there, whatever happens."""
        self._close()
        writes = list(waiting)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacement(self.path) as temporary, temporary.open("wb") as file:
            file.writelines(_line(write) for write in writes)
            file.flush()
            os.fsync(file.fileno())
        self._cut, self.num_lines = False, len(writes)

    def close(self, waiting: Iterable[Write]) -> None:
        """Close the file with only the writes that still wait in it; delete the file if there are none."""
        writes = list(waiting)
        if writes:
            self.rewrite(writes)
        else:
            self._close()
            self.path.unlink(missing_ok=True)

    def _opened(self) -> int:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        return self._file

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def load(path: Path) -> tuple[list[Write], list[bytes]]:
    """Read a journal: return its writes, and the lines that do not match their checksum or cannot be read.

    A last line without an end is left out. Raises OSError.
    """
    writes: list[Write] = []
    damaged: list[bytes] = []
    for line in path.read_bytes().splitlines(keepends=True):
        if not line.endswith(b"\n") or not line.strip():
            continue
        try:
            writes.append(_read(line))
        except (ValueError, KeyError, TypeError, AttributeError):
            damaged.append(line)
    return writes, damaged


def _line(write: Write) -> bytes:
    fields = {"kind": write.kind, "trial_id": write.trial_id, "time_ms": write.time_ms, "value": _encode(write)}
    text = json.dumps(fields)
    return f'{text[:-1]}, "{CHECKSUM}": {crc32(text.encode())}}}\n'.encode()


def _read(line: bytes) -> Write:
    """Return the write of a line. Raises ValueError, KeyError or TypeError if the line is damaged."""
    fields = json.loads(line)
    checksum = fields.pop(CHECKSUM, None)  # none in a journal of raygpu 0.1
    if checksum is not None and checksum != crc32(json.dumps(fields).encode()):
        raise ValueError("the checksum does not match")
    return _decode(fields)


def _trial(trial: Trial) -> dict[str, Any]:
    # MLflow keeps parameters as text, and a tuple must not come back as a list; a run's name has rounded numbers.
    numbers = (bool, int, float)
    values = {name: value if type(value) in numbers else str(value) for name, value in trial.hyperparameters.items()}
    indices = {name: number for name in ("repeat", "fold") if (number := getattr(trial, name)) is not None}
    return {"trial_id": trial.trial_id, "seed": trial.seed, "hyperparameters": values, **indices}


def _encode(write: Write) -> Any:
    value = write.value
    if write.kind in ("begin", "restart"):
        return _trial(value)
    if write.kind == "epochs":
        return [
            {**{name: getattr(result, name) for name in EPOCH}, "metrics": _floats(result.metrics)} for result in value
        ]
    if write.kind == "end":
        names = ("status", "diverged", "error", "reason", "rgu_hours", "score_rule")
        ending = {name: getattr(value, name) for name in names}
        return {"trial": _trial(value.trial), "scores": asdict(value.scores), **ending}
    if write.kind == "metrics":
        return _floats(value)
    if write.kind == "gpu":
        return [value[0], _floats(value[1])]
    return {name: str(text) for name, text in value.items()}


def _floats(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _decode(line: Mapping[str, Any]) -> Write:
    value: Any = line["value"]
    match line["kind"]:
        case "begin" | "restart":
            value = Trial(**value)
        case "epochs":
            value = [EpochResult(**result) for result in value]
        case "end":
            scores = TrialScores(**value["scores"])
            value = TrialRecord(**{**value, "trial": Trial(**value["trial"]), "scores": scores})
        case "place" | "gpu" | "metrics":
            pass
        case unknown:
            raise ValueError(f"no kind of write: {unknown}")
    return Write(line["kind"], line["trial_id"], value, line["time_ms"])
