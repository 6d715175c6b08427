"""The key of a profile: a training, a device type, and the versions that its speed depends on."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import shlex
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import raygpu
from raygpu.config.source import PICKLED, Source
from raygpu.devices import nvml
from raygpu.engines.profiling.workload import Workload
from raygpu.experiment import Experiment, Splits, named
from raygpu.planning.estimates import Hardware
from raygpu.planning.profiles import Subject
from raygpu.search.signature import Signature


def subject(workload: Workload, code: Any, shaped_by: Signature, hardware: Hardware) -> Subject:
    """Return the key of a profile.

    code: the resolved experiment or function; None for a script. shaped_by: the signature of the trials.
    """
    splits = workload.splits
    return Subject(
        source=workload.source.name,
        hyperparameters=dict(shaped_by.values),
        data="" if splits is None else _shapes(splits),
        precision=workload.precision,
        device=hardware.device,
        device_gib=None if hardware.device_gib is None else round(hardware.device_gib, 1),
        num_cpus=hardware.num_cpus,
        versions=_versions(workload.source, code),
    )


def _shapes(splits: Splits) -> str:
    parts = {
        "train": splits.train_inputs,
        "targets": splits.train_targets,
        "validation": splits.validation_inputs,
    }
    return "; ".join(
        f"{part} {name + ' ' if name else ''}{array.dtype} {'x'.join(map(str, array.shape))}"
        for part, arrays in parts.items()
        for name, array in named(arrays).items()
    )


def _versions(source: Source, code: Any) -> dict[str, str]:
    versions = {"raygpu": raygpu.__version__, "code": _fingerprint(source, code)}
    framework = {"torch": "torch", "keras": "tensorflow"}.get(source.kind)
    if framework is not None:
        versions[framework] = metadata.version(framework)
    if (driver := nvml.driver_version()) is not None:
        versions["driver"] = driver
    return versions


def _fingerprint(source: Source, code: Any) -> str:
    """Return a digest of the files that have the code of the experiment's classes, of the function or the script."""
    digest = hashlib.sha256()
    for path in sorted(set(_files(source, code))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(source: Source, code: Any) -> Iterator[Path]:
    if code is None:
        words = (Path(source.folder, word) for word in shlex.split(source.name))
        yield from (path for path in words if path.is_file())
        return
    if source.name.endswith(PICKLED):  # of a notebook's cell
        yield Path(source.name)
        return
    package_folder = Path(raygpu.__file__).parent
    for part in type(code).__mro__ if isinstance(code, Experiment) else [inspect.unwrap(code)]:
        with contextlib.suppress(TypeError, OSError):  # built in, or typed into an interpreter
            path = Path(inspect.getsourcefile(part) or "")
            if path.is_file() and package_folder not in path.parents:
                yield path
