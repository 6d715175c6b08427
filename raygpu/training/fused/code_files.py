"""The files that an array's code is in, with a digest of each: the user's own, and those of packages that it uses.

code = CodeFiles.of(experiment, model)     # None if a part is in no file, or was edited since it was imported
code.digest                                # a part of a key
code.are_unchanged()                       # later, also in another process
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType

from torch import nn

from raygpu.config.imported_files import has_changed, module_file, module_variables
from raygpu.experiment import Experiment
from raygpu.training.users_files import in_users_file

LARGE = 2**24
"""Bytes of a file above which its size and time stand for its content."""
KNOWN_OTHERWISE = frozenset({"torch", "raygpu", "builtins", "typing_extensions"}) | sys.stdlib_module_names
"""Packages whose versions are in a key by themselves, and the standard library. The user's script is no part of it."""


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """Files of code, and versions of packages, as they are in this process."""

    digests: tuple[tuple[str, str], ...]
    """Each file with the digest of its content, sorted."""
    versions: tuple[str, ...]
    """Packages that the files import, each with its version, sorted."""

    @classmethod
    def of(cls, experiment: Experiment, model: nn.Module) -> CodeFiles | None:
        """Return the files of the classes of an experiment and of its model, of all loaded modules of the user's, and
        of what these name of other packages; None if a class is in no file, or a file has changed since its import."""
        kinds = {kind for owner in (experiment, *model.modules()) for kind in type(owner).__mro__}
        modules = {kind.__module__ for kind in kinds if _is_others(kind.__module__)}
        if not all(_file(name) for name in modules):
            return None
        modules |= {name for name in tuple(sys.modules) if (file := _file(name)) and in_users_file(file)}
        named = {name for module in modules for name in _named_by(module)}
        files = sorted({file for name in modules | named if (file := _file(name)) and os.path.isfile(file)})
        if any(has_changed(file) for file in files):
            return None
        packages = {name.partition(".")[0] for name in modules | named}
        packages = {name for name in packages if not in_users_file(_file(name) or "")}
        try:
            return cls(tuple((file, _digest_now(file)) for file in files), tuple(map(_version, sorted(packages))))
        except OSError:
            return None

    @property
    def digest(self) -> str:
        """A digest of all of them, whatever the files' folders."""
        parts = [*(digest for _, digest in self.digests), *self.versions]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def are_unchanged(self) -> bool:
        """Return whether all files have the same content now."""
        try:
            return all(_digest_now(file) == digest for file, digest in self.digests)
        except OSError:
            return False


def _is_others(module: str) -> bool:
    return module == "__main__" or module.partition(".")[0] not in KNOWN_OTHERWISE


def _file(module: str) -> str | None:
    return module_file(sys.modules.get(module))


def _named_by(module: str) -> Iterator[str]:
    """Yield the loaded modules of other packages that a module's variables are, or come from."""
    for value in tuple(module_variables(sys.modules[module]).values()):
        name = module_variables(value).get("__name__") if isinstance(value, ModuleType) else None
        if name is None:
            name = (value if isinstance(value, FunctionType | type) else type(value)).__module__
        if isinstance(name, str) and name in sys.modules and name != "__main__" and _is_others(name):
            yield name


def _digest_now(file: str) -> str:
    status = os.stat(file)
    return _digest(file, status.st_size, status.st_mtime_ns)


@cache
def _digest(file: str, size: int, modified_ns: int) -> str:
    content = Path(file).read_bytes() if size <= LARGE else f"{size} {modified_ns}".encode()
    return hashlib.sha256(content).hexdigest()


@cache
def _version(package: str) -> str:
    """Return a package's name with its version, and a digest of what was installed; without these of its modules' sizes
    and times."""
    try:
        distribution = importlib.metadata.distribution(package)
        installed = (distribution.read_text("RECORD") or "").encode()
        return f"{package} {distribution.version} {hashlib.sha256(installed).hexdigest()}"
    except importlib.metadata.PackageNotFoundError:
        pass
    version, file = getattr(sys.modules.get(package), "__version__", None), _file(package)
    if isinstance(version, str) or file is None or Path(file).name != "__init__.py":
        return f"{package} {version}"
    stats = [(path, path.stat()) for path in sorted(Path(file).parent.rglob("*.py"))]
    return f"{package} {[(path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats]}"
