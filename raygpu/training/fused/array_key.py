"""The key by which measured widths and compiled steps of an array are kept: all that its step is made of.

An array with another key has another step, or another speed. Code is known by its files (`code_files.py`), and
constants by the attributes and variables that it reads. A key cannot see everything that a model's code reads, so a
kept step is also compared with the eager one before it is used.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import raygpu
from raygpu.search.hyperparameters import ALL_NAMES, Hyperparameters
from raygpu.training.fused.code_files import CodeFiles
from raygpu.training.torch.data import by_name
from raygpu.training.torch.python_state import ADDRESS, plain_state

if TYPE_CHECKING:
    from raygpu.training.fused.model_array import TorchArray

OWN_CODE = ("training", "training/fused", "training/torch")
"""Folders of raygpu's code that a step is made of."""
CPUINFO = Path("/proc/cpuinfo")


def array_key(array: TorchArray, code: CodeFiles | None = None) -> str | None:
    """Return the key of an array's step, a part of a file's name; None if its code is in no file, or was edited since
    it was imported. code: the files of its code, where they are known."""
    if (code := code or CodeFiles.of(array.experiment, array.program.model)) is None:
        return None
    program, tile = array.program, array.tiles[0]
    inputs, targets = array.data.train_batch(1, torch.arange(array.batch_size))  # for which a step is compiled
    values, read = array.trials[0].hyperparameters, program.hp.names_read
    state = plain_state(program.model, array.experiment).items()
    properties = {
        "versions": [raygpu.__version__, _own_code(), torch.__version__, platform.python_version()],
        "experiment": [type(array.experiment).__module__, type(array.experiment).__qualname__, code.digest],
        # Members differ in an `hp` that is kept; what the step reads of it is below.
        "state": {path: ADDRESS.sub("", text) for path, text in state if Hyperparameters.__name__ not in text},
        "read": {name: repr(values[name]) for name in sorted(values) if name in read or ALL_NAMES in read},
        "optimizer": [*program.optimizer.program, program.optimizer.num_buffers],
        "device": [array.device.type, _device(array.device)],
        "threads": array.settings.threads,
        "precision": array.settings.precision,
        "batch_size": array.batch_size,
        "stacks": [_forms(stack) for stack in tile.stacks()],
        "inputs": _forms(by_name(inputs)),
        "targets": _forms(by_name(targets)),
    }
    return hashlib.sha256(json.dumps(properties, sort_keys=True).encode()).hexdigest()[:24]


@cache
def _own_code() -> str:
    root = Path(raygpu.__file__).parent
    digest = hashlib.sha256()
    for folder in OWN_CODE:
        for path in sorted((root / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _device(device: torch.device) -> str:
    """Return a GPU's name, or the processor's with its instructions: a step is compiled for all of them."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = CPUINFO.read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return platform.processor()
    return "; ".join(line for line in lines if line.startswith(wanted))


def _forms(tensors: Mapping[str, torch.Tensor]) -> list[list[Any]]:
    """Return the form of each stacked tensor, without its width."""
    return [[name, str(each.dtype), [*each.shape[1:]], [*each.stride()[1:]]] for name, each in tensors.items()]
