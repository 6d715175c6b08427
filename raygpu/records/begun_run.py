"""The run that a command has begun, for its last line after a Ctrl-C without a message of its own."""

from __future__ import annotations

import shlex
from contextvars import ContextVar

from raygpu.config.command_names import typed
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory

RESUMABLE = ("sweep", "train")
"""Kinds of runs that go on by --resume."""
begun: ContextVar[RunDirectory | None] = ContextVar("begun", default=None)
"""Folder of the run that the command has begun; None before."""


def interrupted_line() -> str | None:
    """Return the line that names the folder of the run and how to go on; None where there is no such folder."""
    folder = begun.get()
    if folder is None or not folder.path.is_dir():  # as if nothing had been started
        return None
    try:
        kind = folder.kind if folder.run.is_file() else None
    except BadInput:
        kind = None
    if kind is None:
        return f"interrupted before its end; what there is lies in {folder}"
    if kind in RESUMABLE:
        return f"interrupted before its end; what there is lies in {folder}; go on with: {folder.resumed_by(kind)}"
    report = f"{typed('report')} {shlex.quote(str(folder))}"
    return f"interrupted before its end; what was measured lies in {folder}; its report: {report}"
