"""Import the modules of the coming training, in a worker process that Ray has started before it is asked for.

Ray imports this module at the start of a worker. See `preload`.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

VARIABLE = "RAYGPU_PRELOAD"
"""Variable with the folder in which the imports are announced; empty or not set for none."""
IMPORTS = "imports.json"
PATIENCE_S = 60.0
"""Seconds to wait for the announcement: importing the user's code takes some."""
LOOK_S = 0.02

logger = logging.getLogger(__name__)


def import_announced(folder: Path, patience_s: float = PATIENCE_S) -> list[str]:
    """Wait for the announcement, import its modules, and return their names; none if it does not come.

    A module that cannot be imported is left to the training, which shows the fault.
    """
    announced = _announced(folder, patience_s)
    os.environ.update(announced["variables"])
    imported = []
    for module in announced["modules"]:
        try:
            importlib.import_module(module)
        except Exception:
            logger.exception("%s cannot be imported in advance", module)
            break
        imported.append(module)
    return imported


def _announced(folder: Path, patience_s: float) -> dict[str, Any]:
    """Return the announcement, once it is there; an empty one where the folder is gone, or time is up."""
    until = time.monotonic() + patience_s
    while time.monotonic() < until and folder.is_dir():
        try:
            announcement: dict[str, Any] = json.loads((folder / IMPORTS).read_text())
        except FileNotFoundError:
            time.sleep(LOOK_S)
        else:
            return announcement
    return {"modules": [], "variables": {}}


if os.environ.get(VARIABLE):
    import_announced(Path(os.environ[VARIABLE]))
