"""A folder of what is kept of arrays: the measured widths and the compiled steps, for the next sweep on this machine.

    store = ArrayStore.at(None)              # raygpu/arrays in the user's cache folder
    store.keep_widths(key, widths)
    with store.making(name) as part:         # None if another process makes it already
        compile_into(part)
    path = store.program(name)               # None without one, or with one that is damaged

A compiled step is machine code that a training runs. So the folder has to belong to this user, with no rights for
others, and each program has to be what was written: its digest lies beside it. What cannot be read is left out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from raygpu.records.cache_folder import cache_folder
from raygpu.records.scratch import lock_file
from raygpu.records.whole_files import write_private

MOST_BYTES = 512 * 2**20
"""Bytes of all programs above which the ones that were not used for longest are deleted."""
MOST_WIDTHS = 500
"""Number of files of measured widths above which the oldest ones are deleted."""
RETRY_S = 86_400.0
"""Seconds after which a step that could not be compiled is tried again."""
PROGRAM, DIGEST, WIDTHS, FAULT, LOCK = ".pt2", ".sha256", ".widths.json", ".fault", ".lock"


@dataclass(frozen=True, slots=True)
class KeptWidths:
    """Measured steps of an array, by its width."""

    step_s: Mapping[int, float]
    num_bytes: Mapping[int, int]
    """Peak bytes of memory, with an evaluation."""
    measured_on: str
    """Date, ISO 8601, UTC."""


@dataclass(frozen=True, slots=True)
class KeptProgram:
    """A compiled step."""

    path: Path
    made_on: str
    """Date, ISO 8601, UTC."""


class ArrayStore:
    """A folder of measured widths and compiled steps, of this user alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def at(cls, profiles: str | None) -> ArrayStore:
        """Return the store beside the profiles. profiles: their folder; None for the user's cache folder.

        Raises BadInput without a cache folder.
        """
        if profiles is not None:
            return cls(Path(profiles).expanduser() / "arrays")
        return cls(cache_folder() / "arrays")

    def is_private(self) -> bool:
        """Return whether the folder belongs to this user, without rights for others; make it if it is not there."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
            return _is_own(self.folder) and os.access(self.folder, os.W_OK)
        except OSError:
            return False

    def widths(self, key: str) -> KeptWidths | None:
        """Return the measured widths of arrays with this key; None without any."""
        path = self.folder / f"{key}{WIDTHS}"
        try:
            if not self.is_private() or not _is_own(path):
                return None
            fields = json.loads(path.read_text())
            step_s = {int(width): _positive(seconds) for width, seconds in fields["step_s"].items()}
            num_bytes = {int(width): int(count) for width, count in fields["num_bytes"].items()}
            return KeptWidths(step_s, num_bytes, str(fields["measured_on"])[:10]) if step_s else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def keep_widths(self, key: str, step_s: Mapping[int, float], num_bytes: Mapping[int, int]) -> None:
        """Write the measured widths of arrays with this key. A folder that cannot be written keeps nothing."""
        if not self.is_private():
            return
        content = {"step_s": step_s, "num_bytes": num_bytes, "measured_on": _today()}
        with suppress(OSError):
            write_private(self.folder / f"{key}{WIDTHS}", json.dumps(content).encode())
            for path in [*self._oldest_first(WIDTHS)[:-MOST_WIDTHS], *self._oldest_first(FAULT)[:-MOST_WIDTHS]]:
                path.unlink(missing_ok=True)

    def program(self, name: str) -> KeptProgram | None:
        """Return a program; None without one. A damaged one, or another user's, is deleted if it can be."""
        path = self.folder / f"{name}{PROGRAM}"
        if not self.is_private() or not path.exists():
            return None
        try:
            if _is_own(path) and _is_own(path.with_suffix(DIGEST)) and _digest(path) == _noted(path):
                os.utime(path)
                return KeptProgram(path, _day(path.with_suffix(DIGEST).stat().st_mtime))
        except (OSError, ValueError):
            pass
        self.discard(name)
        return None

    def discard(self, name: str) -> None:
        """Delete a program, if there is one."""
        for ending in (PROGRAM, DIGEST, FAULT):
            with suppress(OSError):
                (self.folder / f"{name}{ending}").unlink(missing_ok=True)

    def programs(self, prefix: str) -> list[str]:
        """Return the names of the programs that begin with a prefix, sorted; whether they are whole is not known
        yet."""
        if not self.is_private():
            return []
        return sorted(path.name.removesuffix(PROGRAM) for path in self.folder.glob(f"{prefix}*{PROGRAM}"))

    def fault(self, name: str) -> str | None:
        """Return why a program could not be compiled, if that was tried within a day; None otherwise."""
        path = self.folder / f"{name}{FAULT}"
        try:
            recent = self.is_private() and _is_own(path) and time.time() - path.stat().st_mtime < RETRY_S
            return path.read_text() if recent else None
        except (OSError, ValueError):
            return None

    def keep_fault(self, name: str, reason: str) -> None:
        """Note why a program could not be compiled. A folder that cannot be written keeps nothing."""
        with suppress(OSError):
            write_private(self.folder / f"{name}{FAULT}", reason.encode())

    @contextmanager
    def making(self, name: str) -> Iterator[Path | None]:
        """Yield a path to write a program to, which is kept at the end; None if another process makes it just now.

        Nothing is kept if the body raises, or writes nothing. Raises OSError if the folder cannot be written.
        """
        if not self.is_private():
            raise PermissionError(f"{self.folder} is not this user's alone")
        path = self.folder / f"{name}{LOCK}"
        if (lock := lock_file(path)) is None:
            yield None
            return
        try:
            with tempfile.TemporaryDirectory(prefix="making-", dir=self.folder) as scratch_folder:
                part = Path(scratch_folder, f"step{PROGRAM}")
                yield part
                if part.exists():
                    self._keep_program(name, part)
        finally:
            path.unlink(missing_ok=True)
            os.close(lock)

    def _keep_program(self, name: str, part: Path) -> None:
        part.chmod(0o600)
        self.discard(name)
        write_private(self.folder / f"{name}{DIGEST}", _digest(part).encode())
        part.replace(self.folder / f"{name}{PROGRAM}")  # last: a program without its digest is no program
        self._trim(name)

    def _trim(self, name: str) -> None:
        """Delete the programs that were not used for longest, but for this one, and what killed processes left."""
        for path in [*self.folder.glob("making-*"), *self.folder.glob(".*.tmp")]:
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > RETRY_S:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        total = 0
        for path in reversed(self._oldest_first(PROGRAM)):
            total += path.stat().st_size
            if total > MOST_BYTES and path.name != f"{name}{PROGRAM}":
                self.discard(path.name.removesuffix(PROGRAM))

    def _oldest_first(self, ending: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{ending}"), key=lambda path: path.stat().st_mtime)


def _is_own(path: Path) -> bool:
    """Return whether a file or folder is this user's, without rights for others, and no link. Raises OSError."""
    status = path.lstat()
    return not path.is_symlink() and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _noted(program: Path) -> str:
    return program.with_suffix(DIGEST).read_text()


def _positive(value: float) -> float:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(value)
    return float(value)


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).date().isoformat()
