"""Reasons why a GPU cannot be used, or cannot be shared by several trainings: one line each, with the remedy.

Sources: compatibility of binaries and PTX, CUDA C++ programming guide, "Application compatibility"; torch's wheels by
architecture, github.com/pytorch/pytorch RELEASE.md, "PyTorch CUDA Support Matrix", releases 2.11 to 2.14.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from raygpu.devices.nvml import Gpu

ARCHITECTURE = re.compile(r"(?P<kind>sm|compute)_(?P<major>\d+)(?P<minor>\d)(?P<bound>[af]?)")
Capability = tuple[int, int]

# Index, oldest and newest card (newer than 12.0: by PTX) and versions of torch's wheels. Only cu126 has cards before
# Turing, and it is to end after 2.14 (pytorch issue 190385).
WHEELS: tuple[tuple[str, Capability, Capability, str], ...] = (
    ("cu130", (7, 5), (99, 9), "torch>=2.11"),
    ("cu126", (5, 0), (9, 0), "torch>=2.11,<2.15"),
)


def too_old(name: str, capability: Capability, arch_list: Iterable[str]) -> str | None:
    """Return why the installed torch has no code for a GPU, too old or too new for its build; None if it has code.

    name: for the message. arch_list: torch.cuda.get_arch_list(), as "sm_75", "sm_90a", "compute_120". Empty for a torch
    without CUDA.
    """
    architectures = [architecture for word in arch_list if (architecture := ARCHITECTURE.fullmatch(word))]
    if not architectures:
        return f"{name}: the installed torch is built without CUDA; {_mend(capability)}"
    if any(_runs(architecture, capability) for architecture in architectures):
        return None
    built = [(int(architecture["major"]), int(architecture["minor"])) for architecture in architectures]
    age = "too old" if capability < min(built) else "too new" if capability > max(built) else "not among the cards"
    span = f"{_dotted(min(built))} to {_dotted(max(built))}"
    return (
        f"{name} (compute capability {_dotted(capability)}) is {age} for the installed torch, built for {span}; "
        f"{_mend(capability)}"
    )


def packing_refusal(gpu: Gpu) -> str | None:
    """Return why several processes cannot share a GPU without MPS, by its compute mode or MIG; None if they can."""
    if gpu.compute_mode == "exclusive-process":
        return (
            f"{gpu.name} is in compute mode exclusive-process, one process at a time: trials are packed on it only "
            "under MPS or fused; `nvidia-smi -c DEFAULT` by an administrator lifts that"
        )
    if gpu.compute_mode == "prohibited":
        return (
            f"{gpu.name} is in compute mode prohibited, no process may compute on it, packed or not; "
            "`nvidia-smi -c DEFAULT` by an administrator lifts that"
        )
    if gpu.mig:
        return f"{gpu.name} is cut into MIG instances; `nvidia-smi -mig 0` by an administrator gives the whole of it"
    return None


def _runs(built: re.Match[str], capability: Capability) -> bool:
    """Return whether code built for one architecture runs on a GPU of this compute capability.

    Binaries run on the same major version from their minor one on, PTX on everything newer. Code for "a" runs on that
    very architecture alone, code for "f" on its family.
    """
    target = int(built["major"]), int(built["minor"])
    if built["bound"] == "a":
        return capability == target
    if built["kind"] == "compute" and not built["bound"]:
        return capability >= target
    return capability[0] == target[0] and capability[1] >= target[1]


def _mend(capability: Capability) -> str:
    cpu = "CUDA_VISIBLE_DEVICES= leaves it out (the CPU where it is the only one)"
    for index, oldest, newest, versions in WHEELS:
        if oldest <= capability <= newest:
            return f"pip install '{versions}' --index-url https://download.pytorch.org/whl/{index}, or {cpu}"
    return f"no wheel of torch 2.11 or later is built for it: {cpu}"


def _dotted(capability: Capability) -> str:
    return f"{capability[0]}.{capability[1]}"
