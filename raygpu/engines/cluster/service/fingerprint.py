"""The fingerprint of a process, which decides whether a command may use a service: versions, environment, GPUs, limits.

refused = refusal(address["fingerprint"], Fingerprint.here(gpus, apart=True))
"""

from __future__ import annotations

import hashlib
import os
import platform
import resource
import site
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import raygpu
from raygpu.devices import control_group, host
from raygpu.devices.nvml import Gpu
from raygpu.engines.cluster import ray_environment

AT_START = (
    *("LD_", "PYTHON", "RAY_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "MALLOC_", "GLIBC_TUNABLES"),
    *("TORCH_", "PYTORCH_", "LANG", "LC_", "NVIDIA_", "CUDA_DEVICE_ORDER", "HOME", "VIRTUAL_ENV", "SLURM_JOB_ID"),
)
"""Beginnings of the variables that a process, or a library, reads when it starts: the service's workers have."""
NOT_COMPARED = (
    *("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_CLIENT_MODE", "PYTHONSTARTUP"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"),
)
"""Variables among them that a worker does not read at its start, or that Ray, scikit-learn and torch set themselves."""
OF_A_COMMAND = ("MPL", "MLFLOW_", "OPTUNA_", "SQLALCHEMY_", "PYDANTIC_", "RICH_")
"""Beginnings of further variables that libraries of a command itself may read when they are imported."""
READ_LATER = ("MLFLOW_TRACKING_", "MLFLOW_S3_", "MLFLOW_HTTP_")
"""Beginnings of variables among them that are read when they are needed."""
LIMITS = ("RLIMIT_AS", "RLIMIT_DATA", "RLIMIT_CPU", "RLIMIT_FSIZE")
LIBRARIES = ("ray", "torch", "tensorflow", "numpy", "mlflow")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything in which the processes of a service have to agree with those that a command would start."""

    versions: Mapping[str, str]
    """Versions of raygpu, Python and libraries, by name; a library that is not installed is left out."""
    python: str
    """Path of the interpreter, in its virtual environment."""
    packages: str
    """Digest that changes when a package is installed, or when raygpu's own code is edited."""
    variables: Mapping[str, str]
    """Digests of the variables that count at a process' start, by name."""
    gpus: Sequence[Sequence[str]]
    """UUIDs of the GPUs of each of Ray's nodes; one empty list where a GPU is simulated."""
    cpus: Sequence[int]
    """CPUs that the processes may run on."""
    limits: Mapping[str, float]
    """Resource limits, those of control groups, and the nice value; -1 for no limit."""
    of_a_command: Mapping[str, str]
    """Digests of the variables that count at the start of a command, beside those of any process."""

    @classmethod
    def here(cls, gpus: Sequence[Gpu], *, apart: bool) -> Fingerprint:
        """Return the fingerprint of this process. apart: whether each type of GPU gets a node of its own."""
        versions = {"raygpu": raygpu.__version__, "Python": platform.python_version()}
        for name in LIBRARIES:
            with suppress(metadata.PackageNotFoundError):
                versions[name] = metadata.version(name)
        nodes = [[gpu.uuid for gpu in of] for of in (host.types(gpus) if apart and gpus else [list(gpus)])]
        limits: dict[str, float] = {name: resource.getrlimit(getattr(resource, name))[0] for name in LIMITS}
        of_groups = {"memory.max": control_group.limit_bytes(), "cpu.max": control_group.cpu_quota()}
        limits |= {name: -1 if limit is None else limit for name, limit in of_groups.items()}
        return cls(
            versions=versions,
            python=str(Path(sys.prefix) / "bin" / Path(sys.executable).name),
            packages=_state_of_packages(),
            variables=at_start(os.environ),
            gpus=nodes,
            cpus=sorted(os.sched_getaffinity(0)),
            limits={**limits, "nice": os.getpriority(os.PRIO_PROCESS, 0)},
            of_a_command=of_a_command(os.environ),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the fingerprint as a value of JSON."""
        return asdict(self)


def at_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the variables that count at a process' start, by name, without those that raygpu sets."""
    raygpu_variables = ray_environment.SETTINGS | ray_environment.LOCAL
    counting = {name: value for name, value in environment.items() if name.startswith(AT_START)}
    return _digests({n: v for n, v in counting.items() if n not in NOT_COMPARED and raygpu_variables.get(n) != v})


def of_a_command(environment: Mapping[str, str]) -> dict[str, str]:
    """Return digests of the further variables that count at the start of a command, by name."""
    return _digests(
        {n: v for n, v in environment.items() if n.startswith(OF_A_COMMAND) and not n.startswith(READ_LATER)}
    )


def may_take_over(service: Mapping[str, Any], command: Fingerprint) -> bool:
    """Return whether a process that waits in the service may become this command: it asks for the GPUs itself."""
    if service.get("of_a_command") != command.of_a_command:
        return False
    return refusal({**service, "gpus": [list(node) for node in command.gpus]}, command) is None


def refusal(service: Mapping[str, Any], command: Fingerprint) -> str | None:
    """Return why a command may not use a service, or None if it may. service: fingerprint as JSON, of any version."""
    own = command.as_json()
    for name in sorted({*own["versions"], *service.get("versions", {})}):
        read, wanted = service.get("versions", {}).get(name), own["versions"].get(name)
        if read != wanted:
            return f"it has {name} {read or 'not at all'}, and this command {wanted or 'has none'}"
    if service.get("python") != own["python"]:
        return f"its Python is {service.get('python')}, and this command's is {own['python']}"
    if service.get("packages") != own["packages"]:
        return "packages or raygpu's code have changed since its start"
    theirs = service.get("variables", {})
    differing = sorted(name for name in {*theirs, *own["variables"]} if theirs.get(name) != own["variables"].get(name))
    if differing:
        return f"{', '.join(differing[:3])} {'differs' if len(differing) == 1 else 'differ'} from its environment"
    if service.get("gpus") != [list(node) for node in own["gpus"]]:
        return f"it has {_named(service.get('gpus', []))}, and this command wants {_named(own['gpus'])}"
    if service.get("cpus") != own["cpus"]:
        return f"it runs on CPUs {_ranges(service.get('cpus', []))}, and this command on {_ranges(own['cpus'])}"
    limits = service.get("limits", {})
    for name, value in own["limits"].items():
        if limits.get(name) != value:
            return f"{name} is {limits.get(name)} there, and {value} here"
    return None


def _state_of_packages() -> str:
    """Return a digest of the times at which packages were installed or raygpu's code was written last."""
    package_folder = Path(raygpu.__file__).parent
    files = [*package_folder.rglob("*.py"), *map(Path, site.getsitepackages())]
    times = []
    for file in sorted(files):
        with suppress(OSError):
            times.append(f"{file} {file.stat().st_mtime_ns}")
    return hashlib.sha256("\n".join(times).encode()).hexdigest()[:16]


def _digests(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: hashlib.sha256(_absolute(name, value).encode(errors="surrogateescape")).hexdigest()[:16]
        for name, value in variables.items()
    }


def _absolute(name: str, value: str) -> str:
    """Return a list of paths with each made absolute: a relative one means another folder in another command."""
    if name not in ("PYTHONPATH", "LD_LIBRARY_PATH"):
        return value
    return os.pathsep.join(os.path.abspath(path) for path in value.split(os.pathsep))


def _named(nodes: Sequence[Sequence[str]]) -> str:
    uuids = [uuid for node in nodes for uuid in node]
    if not uuids:
        return "a simulated GPU"
    shown = ", ".join(uuid[:12] for uuid in uuids[:4])
    return f"{len(uuids)} GPU{'s' if len(uuids) > 1 else ''} ({shown}{', ...' if len(uuids) > 4 else ''})"


def _ranges(cpus: Sequence[int]) -> str:
    """Return numbers as ranges, as in "0-3,8"."""
    parts: list[list[int]] = []
    for cpu in cpus:
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
