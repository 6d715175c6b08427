"""The folder of what raygpu keeps for a user between runs."""

from __future__ import annotations

import os
from pathlib import Path

from raygpu.errors import BadInput


def cache_folder() -> Path:
    """Return raygpu's folder in the user's cache folder (XDG base directory specification). Raises BadInput."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "raygpu"
    except RuntimeError as error:  # neither HOME nor an entry for this user
        raise BadInput("this user has no home directory; set HOME or XDG_CACHE_HOME to a folder") from error
