"""Find the files of a user's own code: an experiment's, and those that they import from the same folders.

    own_files([Path("/home/me/net/train.py")], [Path("/home/me/net")])

The files are read, and nothing is imported, so that every command finds the same ones. Imports of computed names, and
data that the code reads, are not found. Words of a text that read as an import count as one.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import raygpu

INSTALLED = {"site-packages", "dist-packages"}
"""Names of the folders of installed packages."""
RAYGPU = Path(raygpu.__file__).parent.resolve()
STDLIB = Path(sysconfig.get_path("stdlib")).resolve()
"""Folder of Python's own code; outside a virtual environment it has the folder of installed packages too."""
SPACE = rb"(?:[ \t\f]|\\\n)"
NAMES = rb"(?:[.,*\w \t\f\x80-\xff]|\\\n)*+"
IMPORT = re.compile(
    rb"\b(?:import%(space)b(?P<modules>%(names)b)"
    rb"|from\b(?P<module>(?:[.\w\x80-\xff]|%(space)b)*?)\bimport\b%(space)b*+"
    rb"(?P<names>\((?:[^()#]++|#[^\n]*+)*+\)|%(names)b))" % {b"space": SPACE, b"names": NAMES}
)
"""Import statement in Python source. A scan reads some 30 MB/s, a parser 1 MB/s."""


def own_files(files: Iterable[Path], roots: Iterable[Path], others: Iterable[Path] = ()) -> set[Path]:
    """Return these files, and those that they import, directly or not.

    roots: folders at which absolute imports start. others: folders for what is not found there, as `import_roots`.
    Files of installed packages are not followed, and not found.
    """
    own_roots, other_roots = (
        [root for root in dict.fromkeys(root.resolve() for root in each) if _is_followed(root)]
        for each in (roots, others)
    )
    found, waiting = set[Path](), [file.resolve() for file in files]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        if _is_followed(path) and _is_python(path):
            waiting += _imported_files(path, own_roots, other_roots)
    return found


def import_roots() -> list[Path]:
    """Return the folders of `sys.path` with a user's own modules: of editable packages (src/), say."""
    folders = [Path(entry).resolve() for entry in sys.path if entry and Path(entry).is_dir()]
    scripts = Path(sysconfig.get_path("scripts")).resolve()  # the first entry of an installed command
    return [folder for folder in folders if folder != scripts and _is_followed(folder)]


def is_own(path: Path) -> bool:
    """Return whether a file or folder belongs neither to raygpu nor to Python; those of installed packages do not."""
    if path.is_relative_to(RAYGPU):
        return False
    return not path.is_relative_to(STDLIB) or not INSTALLED.isdisjoint(path.relative_to(STDLIB).parts)


def _is_followed(path: Path) -> bool:
    return is_own(path) and INSTALLED.isdisjoint(path.parts)


def _imported_files(path: Path, roots: Sequence[Path], others: Sequence[Path]) -> Iterator[Path]:
    """Yield the own files that a file imports, and the `__init__.py` of the packages that hold any of them."""
    for root in (*roots, *others):
        if root in path.parents:
            yield from _files_of(root, path.relative_to(root).parent.parts)
    for level, name in _imports(path):
        places = [[path.parents[level - 1]]] if 0 < level <= len(path.parents) else [roots, others]
        for folders in places:
            files = [file for folder in folders for file in _files_of(folder, name.split("."))]
            yield from files
            if files:
                break


def _files_of(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Yield the own files of a module in a folder, and of the packages below the folder around it. parts: of its
    name."""
    for count in range(1, len(parts) + 1):
        module = folder.joinpath(*parts[:count])
        candidates = [module / "__init__.py", module.with_name(f"{module.name}.py")]
        yield from (each for each in candidates if _is_followed(each) and each.is_file())


def _is_python(path: Path) -> bool:
    """Return whether a file is Python by its name or its first line: a word of a command may be a file of data."""
    if path.suffix == ".py":
        return True
    try:
        with path.open("rb") as file:
            first = file.readline(256)
    except OSError:
        return False
    return first.startswith(b"#!") and b"python" in first


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the imports of a file, each as the number of its leading dots and its dotted name; none of a file that
    cannot be read."""
    try:
        content = path.read_bytes()
    except OSError:
        return
    lines = content.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    for statement in dict.fromkeys(match.group("modules", "module", "names") for match in IMPORT.finditer(lines)):
        modules, module, names = (_text(each or b"") for each in statement)
        dotted = "".join(module.split())
        level = len(dotted) - len(dotted.lstrip("."))
        for alias in (modules or names.strip("()")).split(","):
            name = ".".join([*filter(None, [dotted[level:]]), *alias.split()[:1]])
            if all(part.isidentifier() or part == "*" for part in name.split(".")):
                yield level, name


def _text(source: bytes) -> str:
    """Return a part of a statement as text, without comments and continued lines."""
    return re.sub(rb"#[^\n]*|\\\n", b" ", source).decode(errors="replace")
