"""Ray's runtime environment for the nodes of a running cluster: the user's code, raygpu itself, settings of Ray.

A submitted job gets it at its submission; a driver that connects from outside sends it when it connects.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import raygpu
from raygpu.config.source import PICKLED, Source
from raygpu.engines.cluster.ray_environment import SETTINGS
from raygpu.errors import BadInput
from raygpu.storage import BEGUN_IN, is_job

EXCLUDES = ("/runs/", "__pycache__/", ".git/", ".venv/")
"""Patterns that are never sent from a source folder, in addition to its .gitignore and .rayignore."""


def runtime_env(source_folder: Path) -> dict[str, Any]:
    """Return Ray's runtime environment. source_folder: becomes the working directory of every worker."""
    return {"working_dir": str(source_folder), **own_code()}


def own_code() -> dict[str, Any]:
    """Return Ray's runtime environment without any code of the user's: raygpu itself, and settings of Ray."""
    return {
        "excludes": list(EXCLUDES),
        "py_modules": [str(Path(raygpu.__file__).parent)],
        "env_vars": SETTINGS,
    }


def travelled(source: Source, source_folder: Path) -> Source:
    """Return the source as a node's worker finds it, relative to the working directory; a pickled one with its content.

    Raises BadInput if the code is outside of the folder that is sent to the nodes.
    """
    root = BEGUN_IN if is_job() else source_folder
    where = os.path.relpath(source.folder, root)
    module = source.name.rpartition(":")[0]
    if source.kind != "command" and source.name.endswith(PICKLED):  # its file is below runs, which is not sent
        source = replace(source, pickled=Path(source.folder, source.name).read_bytes())
    if source.kind != "command" and module.endswith(".py"):
        file = Path(source.folder, module).resolve()
        if not file.is_relative_to(root.resolve()):
            raise BadInput(f"experiment: {file} is outside of {root}, which is what goes to the nodes")
        module = os.path.relpath(file, source.folder)
        source = replace(source, name=f"{module}:{source.name.rpartition(':')[2]}")
    if where.startswith(".."):
        raise BadInput(f"experiment: {source.folder} is outside of {root}, which is what goes to the nodes")
    return replace(source, folder=where)
