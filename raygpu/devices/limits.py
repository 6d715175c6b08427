"""Limit a training to its share of a GPU's memory: past the limit, that training runs out of memory and no other.

On a GPU, torch's own allocator is limited to the share less the CUDA context, which each process holds beside the
memory that torch counts. On a simulated GPU, the kernel limits the process (RLIMIT_DATA, setrlimit(2)).
"""

from __future__ import annotations

import math
import os
import resource
import sys
from pathlib import Path

from raygpu.devices import nvml
from raygpu.devices.nvml import GIB

# Contexts take 0.2 to 0.6 GiB. A figure far off belongs to another process: in a container, NVML's pids are the host's.
LARGEST_CONTEXT_GIB = 4.0
UNMEASURED_CONTEXT_GIB = 0.5
"""CUDA context size assumed where none can be measured, as in a container if CUDA has been started already."""


def torch_fraction(total_gib: float, share_gib: float, context_gib: float) -> float:
    """Return the argument of torch.cuda.set_per_process_memory_fraction: (share - context) / total, at most 1.

    total_gib: as CUDA counts it (torch.cuda.mem_get_info), somewhat less than NVML's. Raises MemoryError if the context
    fills the share.
    """
    return min(1.0, _allocator_gib(share_gib, context_gib) / total_gib)


def tensorflow_limit_mib(share_gib: float, context_gib: float) -> int:
    """Return the `memory_limit` of tf.config.LogicalDeviceConfiguration in MiB: the share without the CUDA context.

    Raises MemoryError if the context fills the share.
    """
    return math.floor(_allocator_gib(share_gib, context_gib) * 1024)


def _allocator_gib(share_gib: float, context_gib: float) -> float:
    rest = share_gib - context_gib
    if rest * 1024 < 1:
        raise MemoryError(
            f"a share of {share_gib:.2f} GiB leaves nothing beside a CUDA context of {context_gib:.2f} GiB: take a "
            "larger fraction"
        )
    return rest


def cap_torch(share: float) -> None:
    """Limit torch in this process to a share (0..1) of the current CUDA device's memory; starts CUDA.

    Call it before the training allocates. A second call replaces the limit; a share of 1.0 still leaves room for the
    CUDA context. Raises MemoryError if the context fills the share.
    """
    import torch

    context_gib = measure_context_gib()
    device = torch.cuda.current_device()
    total_gib = torch.cuda.mem_get_info(device)[1] / GIB
    torch.cuda.set_per_process_memory_fraction(torch_fraction(total_gib, share * total_gib, context_gib), device)


def measure_context_gib() -> float:
    """Return the GiB that this process holds on the current CUDA device outside torch's allocator. Starts CUDA.

    The first source that answers counts: NVML's figure of this process less torch's reserved memory; the drop in free
    memory since before CUDA was started, which neighbours that allocate meanwhile disturb; UNMEASURED_CONTEXT_GIB.
    """
    import torch

    # Read every GPU: the current device's UUID is known only once CUDA is started.
    before = {} if torch.cuda.is_initialized() else {gpu.uuid: nvml.memory(gpu.uuid) for gpu in nvml.gpus()}
    ones = torch.ones(64, 64, device="cuda")
    ones @ ones  # cuBLAS belongs to what every training holds
    torch.cuda.synchronize()
    uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    reserved_gib = torch.cuda.memory_reserved() / GIB
    process_gib = (nvml.process_memory(uuid) or {}).get(os.getpid())
    if process_gib is not None and 0 < process_gib - reserved_gib < LARGEST_CONTEXT_GIB:
        return process_gib - reserved_gib
    then, now = before.get(uuid), nvml.memory(uuid)
    if then is not None and now is not None:
        gone = then.free_gib - now.free_gib - reserved_gib
        if 0 < gone < LARGEST_CONTEXT_GIB:
            return gone
    return UNMEASURED_CONTEXT_GIB


def cap_data(share_gib: float) -> int:
    """Limit this process to `share_gib` more private memory than it holds now; return the old limit for `lift_data`.

    Past the limit an allocation fails in this process alone: MemoryError, torch's "can't allocate memory", TensorFlow's
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
    """Restore the soft limit (RLIMIT_DATA, bytes) that `cap_data` returned."""
    resource.setrlimit(resource.RLIMIT_DATA, (soft, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _start_torch_threads() -> None:
    """Start torch's threads, if torch is loaded: an OpenMP without memory for a thread ends the whole process."""
    torch = sys.modules.get("torch")
    if torch is not None:
        with torch.enable_grad():
            (torch.ones(2**17, device="cpu", requires_grad=True) * 2).sum().backward()


def _held_bytes() -> int:
    """Return the bytes that count against RLIMIT_DATA, see proc(5): private writable memory and threads' stacks."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "VmData":
            return int(rest.split()[0]) * 1024
    raise OSError("/proc/self/status has no VmData")
