"""Limit a trial to its share of its device's memory: past the limit, that trial alone runs out of memory."""

from __future__ import annotations

import os
import sys

import ray

from raygpu.devices import limits
from raygpu.devices.memory_release import wait_for_departed
from raygpu.devices.mps import MEMORY_LIMIT
from raygpu.planning.gpu_shares import Share


class Cap:
    """Memory limit of one worker process, set anew for each of its trials.

    kind: kind of the experiment's source. memory_gib: memory of the whole device; None for no limit.
    """

    def __init__(self, kind: str, memory_gib: float | None) -> None:
        self._kind = kind
        self._memory_gib = memory_gib
        self._set: Share | None = None
        self._lift: int | None = None
        self._settled = False
        """Whether this process has waited for the memory of processes that ended on its GPU before."""

    def set(self, share: Share) -> None:
        """Set the limit for a trial's share, before the trial allocates; a trial with whole GPUs has no limit."""
        self.lift()
        self._wait_for_departed(share)
        if self._memory_gib is None or share.trials_per_gpu == 1:
            return
        share_gib = self._memory_gib * share.fraction
        if self._kind == "keras":
            from raygpu.training.keras.logical_devices import cap, on_gpu

            if on_gpu():
                cap(limits.tensorflow_limit_mib(share_gib, limits.UNMEASURED_CONTEXT_GIB))
                return
        elif self._torch_on_gpu():
            if MEMORY_LIMIT in os.environ:
                return  # the MPS server holds this process to its share
            if share != self._set:
                limits.cap_torch(share.fraction)
                self._set = share
            return
        elif self._kind == "command":
            return  # what it starts counts its own memory, and MPS alone can hold it
        self._lift = limits.cap_data(share_gib)

    def lift(self) -> None:
        """Remove the limit on the process's own memory after a trial; a GPU's limit stays until the next trial."""
        if self._lift is not None:
            limits.lift_data(self._lift)
            self._lift = None

    def _wait_for_departed(self, share: Share) -> None:
        """Wait, once in each process, until the driver has freed the GPU memory of processes that ended before."""
        gpu_id = next(iter(map(str, ray.get_gpu_ids())), "")
        if self._settled or not gpu_id.startswith("GPU-") or share.gpus_per_trial > 1:
            return
        self._settled = True
        if self._kind == "torch" and self._torch_on_gpu():
            limits.measure_context_gib()  # from now on NVML lists this process
        wait_for_departed(gpu_id, (self._memory_gib or 0.0) * share.fraction)

    def _torch_on_gpu(self) -> bool:
        """Return whether the trial uses torch on a GPU, a function that has imported torch itself included."""
        if self._kind != "torch" and "torch" not in sys.modules:
            return False
        import torch

        return torch.cuda.is_available()


def limit_memory(kind: str, memory_gib: float | None, share: Share) -> None:
    """Limit this process for good to a share of its device's memory. See `Cap`."""
    Cap(kind, memory_gib).set(share)
