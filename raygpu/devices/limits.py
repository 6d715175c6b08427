"""Memory caps of a training that has a share of a GPU: past it, that training runs out of memory and no other.

On a GPU, torch's own allocator is capped: to the share less the CUDA context, which each process holds beside what
torch counts. The simulated device of the CPU is capped by the kernel (RLIMIT_DATA, setrlimit(2)).
"""

from __future__ import annotations

import math
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from raygpu.devices import nvml
from raygpu.devices.nvml import GIB

# Contexts take 0.2 to 0.6 GiB. A figure far off belongs to another process: in a container, NVML's pids are the host's.
LARGEST_CONTEXT_GIB = 4.0
UNMEASURED_CONTEXT_GIB = 0.5
"""Assumed where it cannot be measured: in a container whose processes NVML does not tell, CUDA being up already."""


@dataclass(frozen=True, slots=True)
class TorchCap:
    """What `cap_torch` set."""

    share_gib: float
    context_gib: float
    allocator_gib: float
    """What torch may hold: the rest."""


def torch_fraction(total_gib: float, share_gib: float, context_gib: float) -> float:
    """The argument of torch.cuda.set_per_process_memory_fraction: (share - context) / total.

    total_gib: as CUDA counts it (torch.cuda.mem_get_info), somewhat less than NVML's. Raises MemoryError.
    """
    return min(1.0, _allocator_gib(share_gib, context_gib) / total_gib)


def tensorflow_limit_mib(share_gib: float, context_gib: float) -> int:
    """The `memory_limit` of a tf.config.LogicalDeviceConfiguration, which the context is not in. Raises MemoryError."""
    return math.floor(_allocator_gib(share_gib, context_gib) * 1024)


def _allocator_gib(share_gib: float, context_gib: float) -> float:
    rest = share_gib - context_gib
    if rest * 1024 < 1:
        raise MemoryError(
            f"a share of {share_gib:.2f} GiB leaves nothing beside a CUDA context of {context_gib:.2f} GiB: take a "
            "larger fraction"
        )
    return rest


def cap_torch(share: float) -> TorchCap:
    """Cap torch in this process to its share (0..1) of CUDA's current device. Raises MemoryError if that holds nothing.

    Call it before the training allocates. Once more with another share replaces the cap; 1.0 still leaves the context's
    room to the context.
    """
    import torch

    context_gib = measure_context_gib()
    device = torch.cuda.current_device()
    total_gib = torch.cuda.mem_get_info(device)[1] / GIB
    share_gib = share * total_gib
    torch.cuda.set_per_process_memory_fraction(torch_fraction(total_gib, share_gib, context_gib), device)
    return TorchCap(share_gib, context_gib, share_gib - context_gib)


def measure_context_gib() -> float:
    """What CUDA holds in this process beside torch's allocator, on the current device. Starts CUDA.

    By NVML's figure of this process less what torch reserved; else by how much less memory is free than before CUDA was
    started, which neighbours that allocate meanwhile disturb; else 0.5.
    """
    import torch

    # Of every GPU: which one is ours shows only once CUDA is up.
    before = {} if torch.cuda.is_initialized() else {gpu.uuid: nvml.memory(gpu.uuid) for gpu in nvml.gpus()}
    ones = torch.ones(64, 64, device="cuda")
    ones @ ones  # cuBLAS belongs to what every training holds
    torch.cuda.synchronize()
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    reserved_gib = torch.cuda.memory_reserved() / GIB
    own = (nvml.process_memory(uuid) or {}).get(os.getpid())
    if own is not None and 0 < own - reserved_gib < LARGEST_CONTEXT_GIB:
        return own - reserved_gib
    then, now = before.get(uuid), nvml.memory(uuid)
    if then is not None and now is not None:
        gone = then.free_gib - now.free_gib - reserved_gib
        if 0 < gone < LARGEST_CONTEXT_GIB:
            return gone
    return UNMEASURED_CONTEXT_GIB


def cap_data(share_gib: float) -> int:
    """From now on, this process may hold `share_gib` more private memory than it holds now; what `lift_data` takes.

    Past it an allocation fails in this process alone: MemoryError, torch's "can't allocate memory", TensorFlow's
    ResourceExhaustedError. Shared memory (Ray's object store) is not counted. Programs that are started meanwhile
    inherit the limit, counted from their own zero. A tighter limit from outside stays.
    """
    _start_torch_threads()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _held_bytes() + int(share_gib * GIB)
    bounds = [wanted, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(bounds), hard))
    return soft


def lift_data(soft: int) -> None:
    """Set the soft limit that was there before `cap_data`."""
    resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _start_torch_threads() -> None:
    """Where torch is loaded, have its threads: an OpenMP that gets no memory for one ends the whole process."""
    torch = sys.modules.get("torch")
    if torch is not None:
        with torch.enable_grad():
            (torch.ones(2**17, device="cpu", requires_grad=True) * 2).sum().backward()


def _held_bytes() -> int:
    """What the kernel counts against RLIMIT_DATA, see proc(5): private writable memory, threads' stacks included."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "VmData":
            return int(rest.split()[0]) * 1024
    raise OSError("/proc/self/status has no VmData")
