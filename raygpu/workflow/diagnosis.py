"""The checks of `raygpu doctor` that concern GPUs, libraries and the tracking store; each is a finding with a mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from packaging.requirements import Requirement

from raygpu.devices import mps, nvml
from raygpu.devices.fitness import packing_refusal, too_old
from raygpu.devices.nvml import Gpu
from raygpu.errors import TrackingError, one_line, redacted
from raygpu.tracking import stores

State = Literal["ok", "warning", "failure"]
PROBE_S = 120.0
"""Seconds that a library has to be imported and to find the GPUs; a cold disk takes its time."""
TORCH = """
import json, torch
there = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count(),
                  "available": there, "architectures": torch.cuda.get_arch_list() if there else []}))
"""
TENSORFLOW = """
import json, tensorflow
print(json.dumps({"version": tensorflow.__version__, "gpus": len(tensorflow.config.list_physical_devices("GPU")),
                  "cuda": tensorflow.sysconfig.get_build_info().get("cuda_version")}))
"""
CHECKED = ("ray", "mlflow", "torch", "tensorflow", "keras", "nvidia-ml-py", "optuna")
"""Packages of which raygpu's own requirements name the oldest release that it takes, security fixes included."""


@dataclass(frozen=True, slots=True)
class Check:
    """The finding of one check."""

    name: str
    state: State
    finding: str
    mend: str | None = None
    """The remedy of a warning or a failure."""


class Unusable(Exception):
    """A library that cannot be imported or asked."""


def library_checks() -> Iterator[Check]:
    """Yield the checks of GPUs, their driver, and the libraries that train on them."""
    gpus = nvml.gpus()
    yield driver(gpus, nvml.driver_version(), nvml.driver_cuda_version())
    for gpu in gpus:
        if (refusal := packing_refusal(gpu)) is not None:
            yield Check(f"GPU {gpu.index}", "warning", *_halves(refusal))
    yield torch_build(gpus, _probe("torch", TORCH), nvml.driver_cuda_version())
    yield tensorflow_build(gpus, _probe("tensorflow", TENSORFLOW))
    yield mps_use(gpus)
    yield from releases(_requirements())


def driver(gpus: Sequence[Gpu], version: str | None, cuda: str | None) -> Check:
    """Return the check of NVIDIA's driver. cuda: the newest CUDA that it runs, as "13.0"."""
    if version is None:
        finding = "no NVIDIA driver; trials share a simulated GPU on the CPU"
        mend = "for a real GPU install NVIDIA's driver, or start the container with --gpus all"
        return Check("driver", "warning", finding, mend)
    if not gpus:
        mend = "start the container with --gpus all, or ask nvidia-smi why it sees none"
        return Check("driver", "failure", f"{version}, but it shows no GPU", mend)
    listed = ", ".join(f"{gpu.index} {gpu.name} ({gpu.memory_gib:.0f} GiB)" for gpu in gpus)
    return Check("driver", "ok", f"{version}, CUDA {cuda or 'not known'}; {listed}")


def torch_build(gpus: Sequence[Gpu], told: dict[str, Any] | Unusable | None, newest: str | None) -> Check:
    """Return the check of torch against the driver and the GPUs.

    told: the answer of TORCH; None if not installed. newest: the newest CUDA that the driver runs, as "13.0".
    """
    if told is None:
        return Check("torch", "warning", "not installed; no TorchExperiment trains", "pip install 'raygpu[torch]'")
    if isinstance(told, Unusable):
        return Check("torch", "failure", f"cannot be imported: {told}", "install it anew: pip install 'raygpu[torch]'")
    build = f"{told['version']}, built for {'CUDA ' + told['cuda'] if told['cuda'] else 'the CPU'}"
    if not gpus:
        return Check("torch", "ok", build)
    if told["available"]:
        unfit = [too_old(gpu.name, gpu.capability, told["architectures"]) for gpu in gpus if gpu.capability is not None]
        if faults := [fault for fault in unfit if fault is not None]:
            return Check("torch", "failure", *_halves(faults[0]))
        return Check("torch", "ok", f"{build}, uses {told['gpus']} of {len(gpus)} GPUs")
    if told["cuda"] is None:
        first = next((gpu for gpu in gpus if gpu.capability is not None), None)
        fault = (
            too_old(first.name, first.capability, ()) if first is not None and first.capability is not None else None
        )
        return Check("torch", "failure", *_halves(fault or f"{build}; install a build for CUDA"))
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        finding = f"{build}, sees no GPU; CUDA_VISIBLE_DEVICES={visible!r}"
        return Check("torch", "warning", finding, "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there")
    mend = f"the driver runs CUDA up to {newest or 'a version not known'}; update it, or take a torch for an older CUDA"
    return Check("torch", "failure", f"{build}, cannot use CUDA", mend)


def tensorflow_build(gpus: Sequence[Gpu], told: dict[str, Any] | Unusable | None) -> Check:
    """Return the check of TensorFlow. told: the answer of TENSORFLOW; None if not installed."""
    if told is None:
        return Check("tensorflow", "ok", "not installed; only KerasExperiments need it")
    if isinstance(told, Unusable):
        mend = "install it anew: pip install 'raygpu[tensorflow]'"
        return Check("tensorflow", "failure", f"cannot be imported: {told}", mend)
    if gpus and not told["gpus"]:
        finding = f"{told['version']}, sees none of the {len(gpus)} GPUs"
        return Check("tensorflow", "warning", finding, "pip install 'tensorflow[and-cuda]'; Keras trains on the CPU")
    return Check("tensorflow", "ok", f"{told['version']}, sees {told['gpus']} GPUs")


def mps_use(gpus: Sequence[Gpu]) -> Check:
    """Return the check of CUDA MPS, without starting it."""
    if not gpus:
        return Check("MPS", "ok", "not needed: no GPU to share")
    refusals = [refusal for gpu in gpus if (refusal := mps.refusal(gpu.uuid)) is not None]
    if refusals:
        mend = "without it, packed processes take turns on the GPU; fused trials do not need it"
        return Check("MPS", "warning", refusals[0], mend)
    return Check("MPS", "ok", f"can be used on {len(gpus)} GPUs; gpu.mode = auto measures whether it pays")


def releases(requirements: Sequence[Requirement] | None) -> Iterator[Check]:
    """Yield the checks of installed packages against raygpu's own requirements; None where they are not known."""
    if requirements is None:
        yield Check("releases", "warning", "not known: raygpu is not installed", "pip install . in its checkout")
        return
    versions, old = [], []
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            continue
        versions.append(f"{requirement.name} {version}")
        if not requirement.specifier.contains(version, prereleases=True):
            old.append(Check(requirement.name, "failure", f"{version} is installed", f"pip install '{requirement}'"))
    yield from old
    if not old:
        yield Check("releases", "ok", ", ".join(versions))


def tracking_store(uri: str) -> Check:
    """Return the check of the store of MLflow's runs: whether it answers, and a server's version."""
    try:
        stores.check(uri)
    except TrackingError as error:
        mend = "correct tracking.uri or MLFLOW_TRACKING_URI, or sweep with --tracking.enabled false"
        return Check("tracking", "failure", one_line(error), mend)
    version = stores.server_version(uri)
    shown = redacted(uri)
    if version is None:
        return Check("tracking", "ok", f"{shown} can be used")
    wanted = next((each for each in _requirements() or () if each.name == "mlflow"), None)
    if wanted is not None and not wanted.specifier.contains(version, prereleases=True):
        finding = f"{shown} runs MLflow {version}, which lacks later security fixes"
        return Check("tracking", "warning", finding, f"update the server: pip install '{wanted}'")
    return Check("tracking", "ok", f"{shown} answers, MLflow {version}")


def _requirements() -> list[Requirement] | None:
    try:
        named = map(Requirement, metadata.requires("raygpu") or [])
    except metadata.PackageNotFoundError:
        return None
    every: dict[str, Requirement] = {}
    for each in named:
        if each.name in CHECKED:
            each.marker, each.extras = None, set()
            every.setdefault(each.name, each)
    return list(every.values())


def _probe(module: str, program: str) -> dict[str, Any] | Unusable | None:
    """Ask a library in a process of its own, which may crash; None where it is not installed."""
    try:
        metadata.version(module)
    except metadata.PackageNotFoundError:
        return None
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PROBE_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return Unusable(f"no answer within {PROBE_S:g} s")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return Unusable(lines[-1].strip() if lines else f"exit code {done.returncode}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _halves(fault: str) -> tuple[str, str | None]:
    """Split a fault, `what is wrong; what to do`, into the two."""
    finding, _, mend = fault.partition("; ")
    return finding, mend or None
