"""The GPUs that a process sees, kept while the user's module is imported: it may set CUDA_VISIBLE_DEVICES itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from raygpu.errors import BadInput

VARIABLE = "CUDA_VISIBLE_DEVICES"
ASKS_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Variable with which `torch.cuda.is_available()` asks NVML: CUDA itself would fix the GPUs that the process sees."""
_values: dict[str, str | None] = {}
"""Values that modules have given to the variable in this process, by the names of their experiments."""


@contextmanager
def devices_kept(name: str) -> Iterator[None]:
    """Restore the GPUs that this process sees at the end; CUDA is not initialised by then. name: of the experiment.

    Raises BadInput where the code inside has changed them and used a GPU, which is too late to restore.
    """
    before, asks = os.environ.get(VARIABLE), os.environ.get(ASKS_NVML)
    os.environ[ASKS_NVML] = "1"
    try:
        yield
    finally:
        os.environ.pop(ASKS_NVML, None)
        os.environ.update({} if asks is None else {ASKS_NVML: asks})
        after = os.environ.get(VARIABLE)
        if after != before:
            _values[name] = after
            os.environ.pop(VARIABLE, None)
            os.environ.update({} if before is None else {VARIABLE: before})
    torch = sys.modules.get("torch")
    if after != before and torch is not None and torch.cuda.is_initialized():
        raise BadInput(f"experiment: {name} sets {VARIABLE} and uses a GPU while it is imported: leave both out of it")


def devices_lines(name: str) -> list[str]:
    """Return a line on a module that has set the variable in this process."""
    if name not in _values:
        return []
    value = _values[name]
    done = f"sets {VARIABLE}={value}" if value is not None else f"deletes {VARIABLE}"
    return [
        f"experiment: {name} {done} while it is imported, which is undone: raygpu gives each training its GPU;"
        f" {VARIABLE} before the command, or gpu.devices, chooses GPUs"
    ]
