"""Kept measurements and compiled steps of arrays like this one: loaded, or made beside the training.

cache = ArrayCache(store, array, source, environment)
cache.widths()          # None: measure them
step = cache.load(24)   # None: cache.request(24), and load it when it is there, or cache.postpone(24, eager_s)
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from raygpu.config.generators import random_state_kept
from raygpu.config.source import Source
from raygpu.errors import one_line
from raygpu.experiment import Arrays, Splits
from raygpu.planning.array_tiles import serves
from raygpu.records.array_store import ArrayStore, KeptProgram, KeptWidths
from raygpu.training.fused.array_key import array_key
from raygpu.training.fused.audit import same_steps
from raygpu.training.fused.code_files import CodeFiles
from raygpu.training.fused.compile_process import CompileRequest, start
from raygpu.training.fused.compiled_step import LoadedStep
from raygpu.training.fused.model_array import TorchArray
from raygpu.training.fused.program import shapes_of
from raygpu.training.fused.tile import gathered_tile
from raygpu.training.torch.data import Tensors

_postponed_s: dict[str, float] = {}
"""Seconds of training, of all arrays of this process so far, without a step that repays only for several of them; by
the step's name."""
_waiting: set[str] = set()
"""Names of the steps for which a process waits until this one has ended."""
MOST_WAITING = 8
"""Largest number of such processes, which take memory and temporary files."""


class ArrayCache:
    """The part of a store that is about one array.

    source: the origin of the experiment's code, for a process that compiles. environment: variables of that process.
    """

    def __init__(self, store: ArrayStore, array: TorchArray, source: Source, environment: Mapping[str, str]) -> None:
        self._store, self._array = store, array
        self._source, self._environment = source, environment
        self._code = CodeFiles.of(array.experiment, array.program.model) if store.is_private() else None
        self._key = None if self._code is None else array_key(array, self._code)
        self.pending: set[int] = set()
        """Widths whose steps are being compiled."""
        self.postponed: set[int] = set()
        """Widths whose steps are compiled once this process has ended."""
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def keeps(self) -> bool:
        """Whether compiled steps of this array can be kept."""
        return self._key is not None and self._array.device.type == "cpu" and not self._array.data.made_together

    def widths(self) -> KeptWidths | None:
        """Return the widths that were measured for an array like this one; None without any."""
        return None if self._key is None else self._store.widths(self._key)

    def keep_widths(self, step_s: Mapping[int, float], num_bytes: Mapping[int, int]) -> None:
        """Keep measured widths."""
        if self._key is not None and step_s:
            self._store.keep_widths(self._key, step_s, num_bytes)

    def width_of_program(self, width: int) -> int | None:
        """Return the width of the narrowest kept step that serves this many members; None without one."""
        names = self._store.programs(f"{self._key}-") if self.keeps else []
        widths = [int(text) for name in names if (text := name.rpartition("-")[2]).isdigit()]
        return min((each for each in widths if serves(each, width)), default=None)

    def load(self, width: int) -> KeptProgram | None:
        """Let the array use a kept step of this width, if it is there and does what the eager step does.

        One that torch cannot load, or that differs from the eager step, is deleted.
        """
        kept_program = self._store.program(self._name(width)) if self.keeps else None
        if kept_program is None:
            return None
        array, program = self._array, self._array.program
        try:
            batch = array.data.train_batch(1, torch.arange(array.batch_size).expand(width, -1))
            program.use(width, array.batch_size, LoadedStep(kept_program.path), shapes_of(*batch))
            members = [(tile, i) for tile in array.tiles for i in range(len(tile.trials))][:width]
            with random_state_kept():
                if same_steps(array, gathered_tile(members, width), program.step):
                    array.discard_step = self.refuse
                    return kept_program
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):  # of another form: as if it were not there
            pass
        program.forget(width, array.batch_size)
        self._store.discard(self._name(width))
        return None

    def refuse(self, width: int) -> str:
        """Delete the kept step of a width, which an audit has refused, and note this as a fault; return words on it."""
        self._store.discard(self._name(width))
        self._store.keep_fault(self._name(width), f"the last one, of {width} trials at once, was refused by an audit")
        return f": {self._name(width)} is deleted from {self._store.folder}, and not compiled again within a day"

    def request(self, width: int) -> str | None:
        """Have a step compiled beside the training; return why it cannot be, else None."""
        fault = self._start(width, urgent=True)
        if fault is None:
            self.pending.add(width)
        return fault

    def postpone(self, width: int, eager_s: float) -> str | None:
        """Have a step compiled once this process has ended; return why it cannot be, else None.

        eager_s: seconds of training without it.
        """
        name, fault = self._name(width), None
        if name not in _waiting:
            is_full = len(_waiting) >= MOST_WAITING
            full = f"{MOST_WAITING} others are compiled once this worker has ended, and no more"
            fault = full if is_full else self._start(width, urgent=False)
        _postponed_s[name] = self.postponed_s(width) + eager_s
        if fault is None:
            _waiting.add(name)
            self.postponed.add(width)
        return fault

    def postponed_s(self, width: int) -> float:
        """Return the seconds of training in this process for which this step was not compiled, of earlier arrays."""
        return _postponed_s.get(self._name(width), 0.0)

    def _start(self, width: int, *, urgent: bool) -> str | None:
        """Start a process that compiles a step; return why it cannot be, else None."""
        name, array = self._name(width), self._array
        assert self._code is not None
        if (fault := self._store.fault(name)) is not None:
            return fault
        request = CompileRequest(
            folder=self._store.folder,
            name=name,
            code=self._code,
            source=self._source,
            splits=_first_batch(array),
            trial=replace(array.trials[0], fold=None),
            optimizers=array.all_optimizers,
            settings=replace(array.settings, folder=Path()),
            width=width,
            path=[path or os.getcwd() for path in sys.path],
            urgent=urgent,
        )
        try:
            self._processes.append(start(request, self._environment))
        except (OSError, TypeError, AttributeError, pickle.PicklingError) as error:  # no process, or no pickle of it
            return one_line(error)[:200]
        return None

    def arrived(self) -> list[tuple[int, str | None]]:
        """Return the widths whose compilation has ended since the last call, each with its fault, if any."""
        self._processes = [process for process in self._processes if process.poll() is None]
        ended: list[tuple[int, str | None]] = []
        for width in sorted(self.pending):
            fault = self._store.fault(self._name(width))
            if fault is not None or self._name(width) in self._store.programs(self._name(width)):
                ended.append((width, fault))
        self.pending -= {width for width, _ in ended}
        return ended

    def _name(self, width: int) -> str:
        return f"{self._key}-{width}"


def _first_batch(array: TorchArray) -> Splits:
    """Return the first samples of a batch's number as all data, for their shapes; for steps on the CPU."""
    batch = array.data.train_batch(1, torch.arange(array.batch_size))
    inputs, targets = (_arrays(part) for part in batch)
    return Splits(inputs, targets, inputs, targets)


def _arrays(part: Tensors) -> Arrays:
    if isinstance(part, Mapping):
        return {name: tensor.numpy() for name, tensor in part.items()}
    return part.numpy()
