"""A trial's own working folder for a script: it looks like the source folder, and keeps what the script writes.

    folder = WorkingFolder(source, trial_folder)
    cwd = folder.enter(goes_on=False)       # trial_folder/work/<name of the source folder>
    folder.leave()                          # trial_folder/files has what the script wrote there

Small files are copied and not linked: a script run by hand has often left a model in the source folder, and each trial
would write through a link to it.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raygpu.records.trial_files import BEFORE, FILES, WORK

LARGEST_COPY = 64 * 2**20
"""Size in bytes of the largest file that is copied; larger ones are links."""
MOST_BYTES = 128 * 2**20
"""Bytes that are copied in all; the files after that are links."""
MOST_FILES = 256
"""Files of the largest folder that is copied; larger ones, as data sets and environments, are links."""
MOST_SIBLINGS = 1000
"""Entries of the largest folder beside the source whose entries are linked, so that `../data` is found."""
MOST_COPIES = 2000
"""Largest number of files that are copied."""
NOTE = "raygpu-working-folder.json"
"""File beside the working directory: its name, and the size and time of change of each copied file, which tell a copy
from what the script has written."""
CACHE = "__pycache__"


@dataclass(slots=True)
class WorkingFolder:
    """The working folder of one trial.

    source: the folder that the command is written for. home: an existing folder of this trial alone.
    """

    source: Path
    home: Path
    _copies: dict[str, Sequence[int]] = field(default_factory=dict)
    _bytes: int = 0

    def __post_init__(self) -> None:
        self.source, self.home = self.source.resolve(), self.home.resolve()

    @property
    def path(self) -> Path:
        """The working directory, named as the source folder."""
        return self.home / WORK / (self.source.name or "source")

    @property
    def has_files(self) -> bool:
        """Whether there are files of an earlier start of the trial."""
        return (self.home / FILES).is_dir() or (self.home / WORK).is_dir()

    def enter(self, *, goes_on: bool) -> Path:
        """Make the working directory and return it. goes_on: go on with the files of the trial's earlier start;
        they are moved into `files.before` otherwise, beside those of other starts."""
        files, work = self.home / FILES, self.home / WORK
        if not goes_on:
            settle(self.home)
            shutil.rmtree(work, ignore_errors=True)
            if files.is_dir():
                before = self.home / BEFORE
                before.mkdir(exist_ok=True)
                files.rename(before / str(1 + max((int(each.name) for each in before.iterdir()), default=0)))
        work.mkdir(exist_ok=True)
        if files.is_dir() and not self.path.exists():
            files.rename(self.path)
        self.path.mkdir(exist_ok=True)
        self._copies, self._bytes = _noted_copies(work), 0
        self._write_note()
        self._mirror(self.source, self.path)
        self._write_note()
        self._link_siblings(work)
        return self.path

    def _write_note(self) -> None:
        (self.home / WORK / NOTE).write_text(json.dumps({"folder": self.path.name, "copies": self._copies}))

    def leave(self) -> None:
        """Keep the regular files that the script has written or changed, in `files`, and delete all else."""
        settle(self.home)

    def _mirror(self, source: Path, target: Path) -> None:
        """Copy small files and folders of a folder, and link the others; what exists in the target stays."""
        for entry in _entries(source):
            path, mirror = Path(entry.path), target / entry.name
            if self._leads_here(path) or (mirror.is_symlink() or (mirror.exists() and not mirror.is_dir())):
                continue
            if entry.is_dir(follow_symlinks=False) and (mirror.is_dir() or self._is_small(path)):
                mirror.mkdir(exist_ok=True)
                self._mirror(path, mirror)
            elif entry.is_file(follow_symlinks=False) and self._fits(entry):
                self._copy(path, mirror)
            elif not mirror.exists():
                mirror.symlink_to(os.path.realpath(path))

    def _leads_here(self, path: Path) -> bool:
        """Return whether a path is above the working directory: a run in the source folder is no part of it."""
        return self.path.is_relative_to(os.path.realpath(path))  # `resolve` raises for a link to itself

    def _is_small(self, folder: Path) -> bool:
        """Return whether a folder has few enough files to be copied."""
        count = 0
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if not self._leads_here(Path(parent, name))]
            count += len(names) + len(folders)
            if count > MOST_FILES:
                return False
        return True

    def _fits(self, entry: os.DirEntry[str]) -> bool:
        size = entry.stat(follow_symlinks=False).st_size
        fits = size <= LARGEST_COPY and self._bytes + size <= MOST_BYTES and len(self._copies) < MOST_COPIES
        return fits and os.access(entry.path, os.R_OK)

    def _copy(self, path: Path, own: Path) -> None:
        try:
            shutil.copy2(path, own)
        except FileNotFoundError:  # deleted meanwhile
            return
        status = own.stat()
        self._bytes += status.st_size
        self._copies[str(own.relative_to(self.path))] = status.st_size, status.st_mtime_ns

    def _link_siblings(self, work: Path) -> None:
        """Link the entries beside the source folder, so that `../data` is found."""
        if self.source.parent == self.source:
            return
        siblings = list(_entries(self.source.parent))
        for entry in siblings if len(siblings) <= MOST_SIBLINGS else []:
            link = work / entry.name
            if not (link.is_symlink() or link.exists() or self._leads_here(Path(entry.path)) or entry.name == NOTE):
                link.symlink_to(os.path.realpath(entry.path))


def settle(home: Path) -> None:
    """Move the regular files that a script has written or changed to `files`; delete its working directory.

    home: the trial's folder. No effect without a working directory.
    """
    work = home / WORK
    if not (work / NOTE).is_file():
        return
    folder = work / str(_read_note(work)["folder"])
    _drop_copies(folder, _noted_copies(work))
    if folder.is_dir():
        shutil.rmtree(home / FILES, ignore_errors=True)
        folder.rename(home / FILES)
    shutil.rmtree(work, ignore_errors=True)


def _drop_copies(folder: Path, copies: Mapping[str, Sequence[int]]) -> None:
    """Delete all but the files that the script has written or changed: unchanged copies, links, empty folders."""
    for parent, folders, names in os.walk(folder, topdown=False):
        for path in (Path(parent, name) for name in names):
            status = path.lstat()
            copied = copies.get(str(path.relative_to(folder)))
            changed = copied is None or list(copied) != [status.st_size, status.st_mtime_ns]
            if not (stat.S_ISREG(status.st_mode) and changed):
                path.unlink()
        for path in (Path(parent, name) for name in folders):
            if path.is_symlink():
                path.unlink()
            elif path.name == CACHE:
                shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # it has files of the script's
            Path(parent).rmdir()


def _read_note(work: Path) -> dict[str, Any]:
    note: dict[str, Any] = json.loads((work / NOTE).read_text())
    return note


def _noted_copies(work: Path) -> dict[str, Sequence[int]]:
    """Return size and time of change of each copied file, by its path in the working directory."""
    return _read_note(work)["copies"] if (work / NOTE).is_file() else {}


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a folder; none of one that cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []
