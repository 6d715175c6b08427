"""Experiments from Python: a name under which workers find them, by value where they cannot import them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import cloudpickle

from raygpu.config.source import PICKLED
from raygpu.errors import BadInput, one_line
from raygpu.records.whole_files import replacement


def named(experiment: Any, folder: Path) -> str:
    """Return the configuration's name of an experiment: a class, an instance, a function, or its name already.

    What a notebook's cell, `__main__` or a function defines is pickled into the folder, with all that it refers to
    there. Raises BadInput if it cannot be pickled.
    """
    if isinstance(experiment, str):
        return experiment
    name = getattr(experiment, "__qualname__", type(experiment).__qualname__)
    if _is_importable(experiment):
        return f"{experiment.__module__}:{name}"
    try:
        content: bytes = cloudpickle.dumps(experiment)
    except Exception as error:
        raise BadInput(f"experiment: {name} cannot travel to workers: {one_line(error)}; move it to a file") from error
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name.rpartition('.')[2].strip('<>')}-{hashlib.sha256(content).hexdigest()[:12]}{PICKLED}"
    with replacement(path) as temporary:  # another run may read the same one at this moment
        temporary.write_bytes(content)
    return str(path.resolve())


def _is_importable(experiment: Any) -> bool:
    """Return whether a worker finds the same object by its module and name."""
    module = sys.modules.get(getattr(experiment, "__module__", None) or "")
    name = getattr(experiment, "__qualname__", "")
    if module is None or module.__name__ == "__main__" or getattr(module, "__file__", None) is None:
        return False
    return name.isidentifier() and getattr(module, name, None) is experiment
