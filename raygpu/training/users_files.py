"""Tell a user's own files from those of installed packages, the standard library and raygpu."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from pathlib import Path

NOT_USERS = (f"{sysconfig.get_path('stdlib')}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}")
"""Folders of the standard library and of raygpu."""


def in_users_file(file: str) -> bool:
    """Return whether a file is the user's own: not of an installed package, the standard library or raygpu."""
    if "site-packages" in file or "dist-packages" in file or file.startswith(NOT_USERS):
        return False
    folders = (f"{folder.rstrip(os.sep)}{os.sep}" for folder in sys.path if folder)
    return not any(
        file.startswith(folder) and file[len(folder) :].partition(os.sep)[0] in _installed_in(folder)
        for folder in folders
    )


@cache
def _installed_in(folder: str) -> frozenset[str]:
    """Return the names of the files and folders that packages have in a folder, as by `pip install --target`."""
    names = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        lines = record.read_text("utf-8", "replace").splitlines()
        names |= {line.partition(",")[0].partition("/")[0] for line in lines}
    return frozenset(names)


def is_users_module(name: str) -> bool:
    """Return whether a module of this name is loaded, from a file of the user's own or from none, as a notebook."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return name == "__main__" if file is None else in_users_file(file)
