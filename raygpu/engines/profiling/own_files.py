"""Find the files of a user's own code: an experiment's, and those that they import from the same folders.

    own_files([Path("/home/me/net/train.py")], [Path("/home/me/net")])

The files are read, and nothing is imported, so that every command finds the same ones. Imports of computed names, and
data that the code reads, are not found.
"""

from __future__ import annotations

import ast
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import raygpu

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders of installed packages."""
NOT_OWN = (Path(raygpu.__file__).parent.resolve(), Path(sysconfig.get_path("stdlib")).resolve())
"""Folders of raygpu's code and of Python's."""


def own_files(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return these files, and those that they import, directly or not.

    roots: folders at which absolute imports start. Files of installed packages are not followed, and not found.
    """
    own_roots = [root for root in dict.fromkeys(root.resolve() for root in roots) if _is_followed(root)]
    found, waiting = set[Path](), [file.resolve() for file in files]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if _is_followed(path):
            waiting += _imported_files(path, own_roots)
    return found


def is_own(path: Path) -> bool:
    """Return whether a file or folder belongs neither to raygpu nor to Python."""
    return not any(each in (path, *path.parents) for each in NOT_OWN)


def _is_followed(path: Path) -> bool:
    return is_own(path) and INSTALLED.isdisjoint(path.parts)


def _imported_files(path: Path, roots: Sequence[Path]) -> Iterator[Path]:
    """Yield the own files that a file imports, and the `__init__.py` of the packages that hold any of them."""
    for root in roots:
        if root in path.parents:
            yield from _files_of(root, path.relative_to(root).parent.parts)
    for level, name in _imports(path.read_bytes()):
        folders = [path.parents[level - 1]] if 0 < level <= len(path.parents) else roots
        for folder in folders:
            yield from _files_of(folder, name.split("."))


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the own files of a module in a folder, and of the packages around it. parts: of its name."""
    for count in range(len(parts) + 1):
        module = folder.joinpath(*parts[:count])
        candidates = [module / "__init__.py", *([module.with_name(f"{module.name}.py")] if count else [])]
        yield from (each for each in candidates if _is_followed(each) and each.is_file())


@lru_cache(maxsize=1024)
def _imports(content: bytes) -> tuple[tuple[int, str], ...]:
    """Return the imports of a file, each as the number of its leading dots and its dotted name; none of a file that is
    no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's code: Python gives them when it is imported
            nodes = list(ast.walk(ast.parse(content)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    names = [(0, alias.name) for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            first = [node.module] if node.module else []
            names += [(node.level, ".".join([*first, alias.name])) for alias in node.names]
    return tuple(dict.fromkeys(names))
