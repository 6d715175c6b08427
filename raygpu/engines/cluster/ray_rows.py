"""Rows of a Ray Data dataset as a map-style data set: Ray Data prepares them, and Ray's object store keeps them."""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import numpy as np
import ray
import ray.cloudpickle

OPEN_BLOCKS = 16
"""Number of blocks that a process keeps at hand: a block that is in use stays in the node's memory."""
_in_use: WeakSet[RayRows] = WeakSet()


def rows_in_use() -> bool:
    """Return whether this process holds rows in its Ray."""
    return bool(_in_use)


class RayRows:
    """The rows of a `ray.data.Dataset`, for `raygpu.dataset_splits`.

        def data(self):
            rows = raygpu.RayRows(ray.data.read_parquet("s3://bucket/flowers").map(decoded))
            return raygpu.dataset_splits(rows, validation=0.2, targets="label")

    The dataset is executed once, over all nodes, when this object is made; its rows keep the order of what it reads, so
    that a share of them is the same samples in every command, where `random_shuffle` and the like have a seed. One that
    `materialize()` has executed has the order that it was given there. The blocks stay in Ray's object store, which
    moves to disk what memory does not hold. A row is a dict of NumPy arrays and numbers. It is read by the training's
    own process: processes of torch's `DataLoader` are not connected to Ray.
    """

    needs_training_process = True

    def __init__(self, dataset: Any) -> None:
        """Execute a `ray.data.Dataset`. Raises TypeError for another object."""
        if not hasattr(dataset, "to_numpy_refs"):
            raise TypeError(f"RayRows: a {type(dataset).__name__}; wanted: a ray.data.Dataset")
        self._blocks = _blocks_in_order(dataset)
        count = ray.remote(num_cpus=0)(_num_rows)
        self._ends: list[int] = np.cumsum(ray.get([count.remote(block) for block in self._blocks])).tolist()
        self._begin()
        self.column_names = list(self._block(0)) if self._blocks else []
        """Names of the fields of a row."""

    def _begin(self) -> None:
        self._open: OrderedDict[int, Mapping[str, np.ndarray]] = OrderedDict()
        self._pid = os.getpid()
        _in_use.add(self)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int | str) -> Any:
        """Return a row by its number, or all values of a field by its name."""
        if isinstance(row, str):
            return np.concatenate([self._block(number)[row] for number in range(len(self._blocks))])
        if not 0 <= row < len(self):
            raise IndexError(row)
        number = bisect.bisect_right(self._ends, row)
        values = self._block(number)
        place = row - (self._ends[number - 1] if number else 0)
        return {name: values[name][place] for name in self.column_names}

    def _block(self, number: int) -> Mapping[str, np.ndarray]:
        if os.getpid() != self._pid or not ray.is_initialized():
            raise RuntimeError("rows of Ray Data are read in another process than the training's: give num_workers=0")
        if number not in self._open:
            self._open[number] = ray.get(self._blocks[number])
            if len(self._open) > OPEN_BLOCKS:
                self._open.popitem(last=False)
        self._open.move_to_end(number)
        return self._open[number]

    def __getstate__(self) -> tuple[Any, ...]:
        # Only Ray's own pickle tells a worker which process owns the blocks.
        return self.column_names, ray.cloudpickle.dumps(self._blocks), self._ends

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.column_names, blocks, self._ends = state
        self._blocks = ray.cloudpickle.loads(blocks)
        self._begin()


def _blocks_in_order(dataset: Any) -> list[Any]:
    """Execute a dataset; return its blocks in the order of its input, not in that in which they are ready."""
    options = dataset.context.execution_options
    preserves_order, options.preserve_order = options.preserve_order, True
    try:
        blocks: list[Any] = dataset.to_numpy_refs()
    finally:
        options.preserve_order = preserves_order
    return blocks


def _num_rows(block: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(block.values()), ()))
