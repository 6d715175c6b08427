"""The key of a profile: a training, a device type, and the versions that its speed depends on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import os
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import raygpu
from raygpu.config.source import PICKLED, Source
from raygpu.devices import nvml
from raygpu.engines.profiling.own_files import import_roots, is_own, own_files
from raygpu.engines.profiling.workload import Workload
from raygpu.experiment import Experiment, Splits, is_read_later, named
from raygpu.planning.estimates import Hardware
from raygpu.planning.profiles import Subject
from raygpu.search.signature import Signature


def subject(workload: Workload, versions: dict[str, str], shaped_by: Signature, hardware: Hardware) -> Subject:
    """Return the key of a profile. versions: of `versions_of`. shaped_by: the signature of the trials."""
    splits = workload.splits
    return Subject(
        source=workload.source.name,
        hyperparameters=dict(shaped_by.values),
        data="" if splits is None else _shapes(splits),
        precision=workload.precision,
        device=hardware.device,
        device_gib=None if hardware.device_gib is None else round(hardware.device_gib, 1),
        num_cpus=hardware.num_cpus,
        versions=versions,
    )


def _shapes(splits: Splits) -> str:
    parts = {
        "train": splits.train_inputs,
        "targets": splits.train_targets,
        "validation": splits.validation_inputs,
    }
    return "; ".join(
        f"{part} {name + ' ' if name else ''}{array.dtype} {'x'.join(map(str, array.shape))}"
        + (", read later" if is_read_later(array) else "")  # made-up data of the same shapes lies in memory
        for part, arrays in parts.items()
        for name, array in named(arrays).items()
    )


def versions_of(source: Source, code: Any) -> dict[str, str]:
    """Return the versions of a training's code, and of what runs it.

    code: the resolved experiment or function; None for a script.
    """
    versions = {"raygpu": raygpu.__version__, "code": _fingerprint(source, code)}
    framework = {"torch": "torch", "keras": "tensorflow"}.get(source.kind)
    if framework is not None:
        versions[framework] = metadata.version(framework)
    if (driver := nvml.driver_version()) is not None:
        versions["driver"] = driver
    return versions


def _fingerprint(source: Source, code: Any) -> str:
    """Return a digest of the files of a training's own code, wherever they lie."""
    if source.name.endswith(PICKLED):  # of a notebook's cell
        files = {Path(source.name)}
    elif code is None:
        words = (Path(source.folder, word) for word in shlex.split(source.name))
        scripts = [path for path in words if os.path.isfile(path)]  # a word may be no possible name of a file
        files = own_files(scripts, [Path(source.folder), *(path.parent for path in scripts)], import_roots())
    else:
        modules = dict(_modules(source, code))
        files = own_files(modules, [Path(source.folder), *modules.values()], import_roots())
    digests = sorted(map(_digest, files))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    """Return the digest of a file's content; of its name where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return hashlib.sha256(path.name.encode(errors="surrogateescape")).hexdigest()


def _modules(source: Source, code: Any) -> Iterator[tuple[Path, Path]]:
    """Yield the files that define the experiment's classes or the function, and the one that the configuration names;
    each with the folder at which its module's name starts."""
    named_module = source.name.rpartition(":")[0]
    if named_module.endswith(".py"):
        path = Path(source.folder, named_module)
        yield path, path.parent
    elif named_module in sys.modules:
        yield from _module(sys.modules[named_module], named_module)
    for part in type(code).__mro__ if isinstance(code, Experiment) else [inspect.unwrap(code)]:
        yield from _module(part, getattr(part, "__module__", ""))


def _module(part: Any, name: str) -> Iterator[tuple[Path, Path]]:
    """Yield the file of a module, class or function, and the folder at which the module's name starts."""
    with contextlib.suppress(TypeError, OSError):  # built in, or typed into an interpreter
        path = Path(inspect.getsourcefile(part) or "").resolve()
        depth = name.count(".") + (path.name == "__init__.py")
        if path.is_file() and is_own(path) and depth < len(path.parents):
            yield path, path.parents[depth]
