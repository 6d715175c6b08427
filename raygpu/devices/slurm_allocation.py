"""The part of a node that Slurm has allocated to this job, from its environment variables.

Slurm limits a job by control groups only where its administrator has set them up, so raygpu keeps to these numbers by
itself. Source: sbatch's and srun's manual pages, "OUTPUT ENVIRONMENT VARIABLES".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

MIB_PER_GIB = 1024
SHARED_MEMORY = "/dev/shm"
OBJECT_STORE_SHARE = 0.3
"""Share of the memory for Ray's object store, as Ray takes of a machine's."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """Share of the process' node that its job has. None where Slurm does not say, or sets no limit."""

    num_cpus: int | None = None
    num_gpus: int | None = None
    memory_gib: float | None = None

    @property
    def object_store_bytes(self) -> int | None:
        """Size of Ray's object store, which shared memory has to hold; None for Ray's own choice."""
        if self.memory_gib is None:
            return None
        wanted = int(self.memory_gib * OBJECT_STORE_SHARE * 2**30)
        try:
            return min(wanted, int(shutil.disk_usage(SHARED_MEMORY).total * 0.9))
        except OSError:
            return wanted

    @property
    def worker_bytes(self) -> int | None:
        """Memory of Ray's workers, beside the object store; None for Ray's own choice."""
        return int(self.memory_gib * (1 - OBJECT_STORE_SHARE) * 2**30) if self.memory_gib is not None else None


def allocation(environment: Mapping[str, str] | None = None) -> Allocation:
    """Return the allocation of the process' environment; without limits outside of a job."""
    variables = os.environ if environment is None else environment
    if "SLURM_JOB_ID" not in variables:
        return Allocation()
    num_cpus, num_gpus = _number(variables, "SLURM_CPUS_ON_NODE"), _num_gpus(variables)
    # One of the three is given. 0 is all of the node's memory.
    memory_mib = (
        (_number(variables, "SLURM_MEM_PER_NODE") or 0)
        or (_number(variables, "SLURM_MEM_PER_CPU") or 0) * (num_cpus or 0)
        or (_number(variables, "SLURM_MEM_PER_GPU") or 0) * (num_gpus or 0)
    )
    return Allocation(num_cpus, num_gpus, memory_gib=memory_mib / MIB_PER_GIB if memory_mib else None)


def _num_gpus(variables: Mapping[str, str]) -> int | None:
    """Return the number of GPUs; by CUDA_VISIBLE_DEVICES, which Slurm sets too, where it does not tell the number."""
    if (gpus_on_node := _number(variables, "SLURM_GPUS_ON_NODE")) is not None:
        return gpus_on_node
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    return len([word for word in visible.split(",") if word.strip()]) if visible is not None else None


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "")
    return int(text) if text.isdecimal() else None
