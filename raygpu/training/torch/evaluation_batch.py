"""The number of samples that an evaluation takes at once: fewer from the moment on that memory does not hold them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from raygpu.planning.batches import evaluation_bounds
from raygpu.training.out_of_memory import is_out_of_memory

T = TypeVar("T")
SMALLER = (
    "out of memory in an evaluation of {before:,} samples at once: from here on it takes {now:,} at once; a loss or"
    " metric that is no mean or sum over samples is then the mean of these smaller batches"
)


class EvaluationBatch:
    """Cuts validation data into batches, after an out-of-memory into smaller ones."""

    def __init__(self, notes: list[str]) -> None:
        """notes: gets a line for a person once batches become smaller."""
        self._size: int | None = None
        """Samples of a batch; None before the first out-of-memory."""
        self._notes = notes

    def evaluated(self, count: int, evaluate: Callable[[Sequence[slice]], T], *, fixed: bool = False) -> T:
        """Return the result of an evaluation of `count` samples, called with each batch's; after an out-of-memory it
        begins anew with half as many in each.

        fixed: whether the batches stay as they are. Raises the out-of-memory error, of whichever library, if they do,
        and for one sample.
        """
        first = largest = 0
        while True:
            parts = [slice(*bounds) for bounds in evaluation_bounds(count, self._size)]
            largest = max(part.stop - part.start for part in parts)
            first = first or largest
            try:
                result = evaluate(parts)
                break
            except Exception as error:
                if fixed or largest == 1 or not is_out_of_memory(error):
                    raise
            self._size = largest // 2  # only here: the error holds the tensors of the batch
            torch.cuda.empty_cache()
        if largest < first:
            self._notes.append(SMALLER.format(before=first, now=largest))
        return result
