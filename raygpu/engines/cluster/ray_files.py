"""Files of a local Ray that no other user of the machine may read or replace: its sessions, and its token."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raygpu.errors import RaygpuError
from raygpu.records import scratch
from raygpu.records.scratch import private_folder

SESSIONS = "/tmp/raygpu-ray-{}"
"""Folder of the sessions of a user's local Rays, by user id; short, for the paths of sockets have 107 bytes at most.
Ray's own default, /tmp/ray, is one that everybody can write to."""
BELOW = "ray"
"""Folder below it: Ray opens the one that it is told to everybody."""
_joined: list[Path] = []
"""Folder of the logs of a Ray that this process has joined; empty otherwise."""
GIVEN = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables by which a person gives a token."""


def is_given(variables: Mapping[str, str]) -> bool:
    """Return whether an environment names a token."""
    return any(name in variables for name in GIVEN)


def where() -> str:
    """Return the folder below which a local Ray keeps its files, whether it is there or not."""
    return os.environ.get("RAY_TMPDIR") or SESSIONS.format(os.getuid())


def use_logs(folder: Path | None) -> None:
    """Let `logs` return this folder, of a Ray that runs already and that this process has joined; None for its own."""
    _joined[:] = [folder] if folder is not None else []


def logs() -> Path | None:
    """Return the folder of the logs of the Ray that this process has started, or joined; None without one."""
    if _joined:
        return _joined[0]
    sessions_of_process = sorted(Path(where(), BELOW).glob(f"session_*_{os.getpid()}"))
    return sessions_of_process[-1] / "logs" if sessions_of_process else None


def disks(folder: Path | None) -> list[Path]:
    """Return the folders of this machine that a run writes to. folder: the run's own; None for none here."""
    return [*([folder] if folder is not None else []), Path(tempfile.gettempdir()), Path(where())]


def folders() -> tuple[str, Path] | tuple[None, None]:
    """Return the folder for Ray's sessions, and one for temporary files of this process' Ray, deleted with it.

    Both are None where the user chose a folder by RAY_TMPDIR. Raises RaygpuError.
    """
    if "RAY_TMPDIR" in os.environ:
        return None, None
    try:
        user_folder = private_folder(Path(SESSIONS.format(os.getuid())))
        return str(user_folder / BELOW), scratch.home(user_folder)
    except OSError as error:
        raise RaygpuError(f"Ray did not start: {error}; or choose another folder by RAY_TMPDIR") from error


def token_file() -> Path | None:
    """Return the file in which Ray keeps the user's token; None for a user without a home directory."""
    path = Path(os.path.expanduser("~/.ray/auth_token"))
    return path if path.is_absolute() else None


def keep_token_private() -> None:
    """Make the token that Ray would make, for its owner alone; close an existing one that others can read.

    Does nothing where a token is given, or Ray is to ask for none (RAY_AUTH_MODE=disabled). Raises RaygpuError where
    the home directory takes none.
    """
    if os.environ.get("RAY_AUTH_MODE", "token") != "token" or any(name in os.environ for name in GIVEN):
        return
    if (path := token_file()) is None:
        return
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            path.chmod(0o600)
            return
        with os.fdopen(file, "w") as opened:
            opened.write(secrets.token_hex(32))
    except OSError as error:
        if not os.access(path, os.R_OK):  # Ray reads one that is there, and writes none
            raise RaygpuError(
                f"Ray did not start: its token cannot be kept in {path}: {error.strerror}; set HOME to a folder that"
                " can be written, or RAY_AUTH_TOKEN_PATH to the file of a token"
            ) from error
