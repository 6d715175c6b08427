"""The data of a training whose samples are read while it goes on, and the choice between that and arrays."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import torch

from raygpu.experiment import Arrays, Splits, named, num_samples, reads_later, take
from raygpu.search.trials import Trial
from raygpu.training.data.columns import Column, columns_of, order_of_reading, require_readable
from raygpu.training.data.fields import unnamed
from raygpu.training.folds import Data
from raygpu.training.torch.data import DeviceData, Tensors, TrainingData, cast, moved, of_each, tensors
from raygpu.training.torch.loader import BatchRequest, Loader, Part

PIECE_BYTES = 2**24
"""Bytes of samples of an evaluation that are read at once: processes hand them over in shared memory."""


def training_data(
    data: Data, device: torch.device, dtype: torch.dtype | None, trials: Sequence[Trial], threads: int
) -> TrainingData:
    """Return the data of these trials. dtype: of floating-point data; None leaves it unchanged. threads: CPU threads of
    the training.

    Raises ValueError for trials of folds of different sizes, and as `require_fold` and `require_readable` do.
    """
    if isinstance(data, Splits):
        require_readable(data)
    if isinstance(data, Splits) and reads_later(data.train_inputs):
        return ReadData(data, device, dtype, threads)
    return DeviceData.of(data, device, dtype, trials)


class ReadData(TrainingData):
    """Samples of data sets, read in batches while a training goes on; one that reads later also reads in order."""

    timed_batches = 8
    """Few of them, which are read before."""

    def __init__(self, splits: Splits, device: torch.device, dtype: torch.dtype | None, threads: int) -> None:
        self.device, self._dtype = device, dtype
        self._num_train, self.samples_per_epoch = splits.num_train, splits.samples_per_epoch
        self.num_validation = num_samples(splits.validation_inputs)
        self._parts = {
            "train": (splits.train_inputs, splits.train_targets),
            "validation": (splits.validation_inputs, splits.validation_targets),
        }
        self._columns = {name: columns_of(inputs)[0] for name, (inputs, _) in self._parts.items()}
        self.in_order = self._columns["train"].in_order
        self.made_together = self._columns["train"].samples.reading.collate_fn is not None
        self._loader = Loader({name: column.samples for name, column in self._columns.items()}, device, threads)

    def order(self, trial: Trial, epoch: int) -> torch.Tensor:
        """Return the training samples of an epoch in their order, the same for all trials; of a stream in its own."""
        return torch.from_numpy(order_of_reading(self._columns["train"], epoch, self.samples_per_epoch))

    def orders(self, trials: Sequence[Trial], epoch: int, count: int) -> torch.Tensor:
        """Return the order of an epoch, the same in each row and once in memory."""
        return self.order(trials[0], epoch).expand(count, -1)

    def train_batches(self, epoch: int, chosen: Iterable[torch.Tensor]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each of these batches of training samples, which are read ahead."""
        under_way: deque[tuple[torch.Tensor, np.ndarray]] = deque()

        def requests() -> Iterator[BatchRequest]:
            """Yield the requests of batches, as far ahead as they are read."""
            for each in chosen:
                rows = self._own_rows(each)
                under_way.append((each, rows))
                yield self._request("train", rows, epoch)

        for batch in self._loader.batches("train", requests()):
            each, rows = under_way.popleft()
            yield self._for_members(each, self._on_device("train", rows, batch))

    def train_batch(self, epoch: int, chosen: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Read inputs and targets of these training samples now."""
        rows = self._own_rows(chosen)
        batch = self._loader.batch(self._request("train", rows, epoch))
        return self._for_members(chosen, self._on_device("train", rows, batch))

    def validation_batches(self, parts: Sequence[slice]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each part of the validation data, which are read ahead."""
        rows_by_part = [np.arange(part.start, part.stop) for part in parts]
        pieces = [np.array_split(rows, self._num_pieces(len(rows))) for rows in rows_by_part]
        requests = (self._request("validation", piece, 1) for each in pieces for piece in each)
        read = self._loader.batches("validation", requests)
        for rows, each in zip(rows_by_part, pieces, strict=True):
            yield self._on_device("validation", rows, _joined(list(islice(read, len(each)))))

    def _num_pieces(self, count: int) -> int:
        """Return the number of pieces in which so many validation samples are read: several are in memory at a time."""
        column = self._columns["validation"]
        if column.samples.reading.collate_fn is not None:
            return 1  # a batch is whatever the function makes of all of it
        arrays = [array for part in self._parts["validation"] for array in named(part).values()]
        num_bytes = count * sum(array.nbytes for array in arrays) / self.num_validation
        return max(1, min(count, math.ceil(num_bytes / PIECE_BYTES)))

    def take_waited(self) -> float | None:
        """Return the seconds of waiting for samples since the last call."""
        return self._loader.take_waited()

    def close(self) -> None:
        """End the processes that read."""
        self._loader.close()

    @staticmethod
    def _own_rows(chosen: torch.Tensor) -> np.ndarray:
        """Return the samples of one member: all have the same order."""
        return (chosen if chosen.ndim == 1 else chosen[0]).cpu().numpy()

    def _request(self, part: str, rows: np.ndarray, epoch: int) -> BatchRequest:
        return BatchRequest(part, self._columns[part].absolute(rows), epoch)

    def _on_device(self, part: str, rows: np.ndarray, batch: tuple[Part, Part]) -> tuple[Tensors, Tensors]:
        """Return what was read as tensors on the device, by the names and number types of the splits."""
        inputs, targets = (self._chosen(arrays, rows, batch) for arrays in self._parts[part])
        return inputs, targets

    def _chosen(self, arrays: Arrays, rows: np.ndarray, batch: tuple[Part, Part]) -> Tensors:
        """Return one part of a batch: of the fields that were read those that it has, and what is in memory."""
        fields: dict[str, torch.Tensor] = {}
        for name, array in named(arrays).items():
            if isinstance(array, Column):
                dtype = _torch_type(array.dtype) if array.is_converted else None
                fields[name] = batch[array.part][array.name].to(self.device, dtype, non_blocking=True)
            else:
                tensor = moved(tensors(take(array, rows)), self.device)
                assert isinstance(tensor, torch.Tensor)
                fields[name] = tensor
        return cast(unnamed(fields), self._dtype)

    @staticmethod
    def _for_members(chosen: torch.Tensor, batch: tuple[Tensors, Tensors]) -> tuple[Tensors, Tensors]:
        """Return a batch as it is, or a copy for each member of an array."""
        if chosen.ndim == 1:
            return batch
        inputs, targets = (
            of_each(part, lambda tensor: tensor.expand(len(chosen), *tensor.shape).contiguous()) for part in batch
        )
        return inputs, targets


def _joined(pieces: list[tuple[Part, Part]]) -> tuple[Part, Part]:
    """Return the samples of several pieces as one."""
    if len(pieces) == 1:
        return pieces[0]
    inputs, targets = ({name: torch.cat([each[i][name] for each in pieces]) for name in pieces[0][i]} for i in (0, 1))
    return inputs, targets


def _torch_type(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype
