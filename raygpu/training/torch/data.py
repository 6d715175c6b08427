"""A torch experiment's data: its place in memory, and the samples of a batch on the device."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, tee
from operator import itemgetter, methodcaller
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.utils._pytree import tree_map

from raygpu.experiment import Arrays, named, num_samples
from raygpu.planning.batches import epoch_order
from raygpu.search.trials import Trial
from raygpu.training.folds import Data, Folds, require_fold

Tensors: TypeAlias = "torch.Tensor | dict[str, torch.Tensor]"


class TrainingData(ABC):
    """The data of a training, or of an array's trainings: batches on their device, (samples, ...).

    With trials of several members, `chosen` is (members, samples), and so are the batches: (members, samples, ...).
    """

    samples_per_epoch: int
    """Number of training samples of an epoch."""
    num_validation: int
    """Number of validation samples."""
    shared_validation: bool = True
    """Whether all trials have the same validation data."""
    in_order: bool = False
    """Whether the training samples are a stream's: a later one costs all before it."""
    made_together: bool = False
    """Whether the samples of a batch are made together, by a `collate_fn`."""
    timed_batches: int | None = None
    """Number of batches of an epoch whose steps are timed, again and again; None for all."""
    order_bytes: int = 0
    """Bytes on the device that `orders` takes for each member; 0 where all have the same order."""

    @abstractmethod
    def order(self, trial: Trial, epoch: int) -> torch.Tensor:
        """Return the training samples of a trial's epoch in their order, int64."""

    @abstractmethod
    def orders(self, trials: Sequence[Trial], epoch: int, count: int) -> torch.Tensor:
        """Return the orders of several trials in an epoch, (count, samples); the last rows are the first one again."""

    @abstractmethod
    def train_batches(self, epoch: int, chosen: Iterable[torch.Tensor]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each of these batches of training samples: copies, which may be changed."""

    def train_parts(
        self, epoch: int, batches: Iterable[tuple[torch.Tensor, Sequence[int]]]
    ) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each part of these batches of training samples of one trial: copies.

        batches: the samples of each, and the sizes of its parts. A `collate_fn` makes whole batches, which are cut.
        """
        if not self.made_together:
            yield from self.train_batches(epoch, (part for each, sizes in batches for part in each.split([*sizes])))
            return
        read, cut = tee(batches)
        whole = self.train_batches(epoch, (each for each, _ in read))
        for (inputs, targets), (_, sizes) in zip(whole, cut, strict=True):
            for size, end in zip(sizes, accumulate(sizes), strict=True):
                part = slice(end - size, end)
                yield (inputs, targets) if len(sizes) == 1 else (rows(inputs, part), rows(targets, part))

    @abstractmethod
    def train_batch(self, epoch: int, chosen: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Return inputs and targets of these training samples: copies."""

    @abstractmethod
    def validation_batches(self, parts: Sequence[slice]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each part of the validation data: copies."""

    def own_validation_batch(self, trials: Sequence[Trial], part: slice) -> tuple[Tensors, Tensors]:
        """Return a part of each trial's own validation data; where it is not shared."""
        raise AssertionError("all trials have the same validation data")

    def on_device(self) -> list[torch.Tensor]:
        """Return the tensors that stay on the device; none of samples that are read."""
        return []

    def take_waited(self) -> float | None:
        """Return the seconds of waiting for samples since the last call; None for data in memory."""
        return None

    def close(self) -> None:
        """End processes, and close files, if there are any."""
        return


@dataclass(frozen=True, slots=True)
class DeviceData(TrainingData):
    """Arrays as tensors: on the device if they fit there, otherwise in host memory.

    With folds, the training tensors hold all samples, of which `order` has those of a trial.
    """

    device: torch.device
    home: torch.device
    """Device on which the tensors lie."""
    train_inputs: Tensors
    train_targets: Tensors
    validation_inputs: Tensors
    validation_targets: Tensors
    """Validation data; of trials of several folds all samples, of which `own_validation_batch` takes a trial's."""
    num_train: int
    samples_per_epoch: int
    num_validation: int
    folds: Folds | None = None
    """The folds; None without cross-validation."""
    shared_validation: bool = True

    @classmethod
    def of(
        cls, data: Data, device: torch.device, dtype: torch.dtype | None = None, trials: Sequence[Trial] = ()
    ) -> DeviceData:
        """Convert the data of these trials to tensors. dtype: of floating-point data; None leaves it unchanged.

        Raises ValueError for trials of folds of different sizes, and as `require_fold` does.
        """
        require_fold(data, trials)
        home = home_of(data, device)
        at_home = [cast(moved(tensors(part), home), dtype) for part in _parts(data)]
        if not isinstance(data, Folds):
            train, wanted, held, expected = at_home
            sizes = data.num_train, data.samples_per_epoch, num_samples(data.validation_targets)
            return cls(device, home, train, wanted, held, expected, *sizes)
        folds = sorted({trial.fold for trial in trials if trial.fold is not None})
        different = {data.sizes(fold) for fold in folds}
        if len(different) != 1:
            raise ValueError(f"fold: trials that train together need folds of one size, and have {sorted(different)}")
        (num_train, num_validation), shared = different.pop(), len(folds) == 1
        held, expected = (of_each(part, itemgetter(data.held(folds[0]))) for part in at_home) if shared else at_home
        inputs, targets = at_home
        return cls(device, home, inputs, targets, held, expected, num_train, num_train, num_validation, data, shared)

    def order(self, trial: Trial, epoch: int) -> torch.Tensor:
        """Return the training samples of a trial's epoch in their order, as rows of the training tensors."""
        order = epoch_order(trial.seed, epoch, self.num_train, self.samples_per_epoch)
        if self.folds is not None:
            assert trial.fold is not None
            order = self.folds.train_rows(trial.fold, order)
        return torch.from_numpy(order).to(self.home)

    def orders(self, trials: Sequence[Trial], epoch: int, count: int) -> torch.Tensor:
        """Return the orders of several trials in an epoch, (count, samples), of the smallest type that holds them."""
        orders = torch.empty((count, self.samples_per_epoch), dtype=self._order_type, device=self.home)
        for row, trial in zip(orders, trials, strict=False):
            row.copy_(self.order(trial, epoch))
        orders[len(trials) :] = orders[0]
        return orders

    @property
    def _order_type(self) -> torch.dtype:
        """Type of a sample's number, of which all orders of an array have as many as the epoch has samples."""
        return torch.int32 if num_samples(self.train_targets) <= torch.iinfo(torch.int32).max else torch.int64

    @property
    def order_bytes(self) -> int:  # type: ignore[override]
        """Bytes on the device that `orders` takes for each member."""
        return self.samples_per_epoch * self._order_type.itemsize if self.home == self.device else 0

    def train_batches(self, epoch: int, chosen: Iterable[torch.Tensor]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each of these batches of training samples: copies, which may be changed."""
        for each in chosen:
            yield self.train_batch(epoch, each)

    def train_batch(self, epoch: int, chosen: torch.Tensor) -> tuple[Tensors, Tensors]:
        """Return inputs and targets of these training samples: copies."""
        return self._taken((self.train_inputs, self.train_targets), chosen)

    def _taken(self, pair: tuple[Tensors, Tensors], chosen: torch.Tensor | slice) -> tuple[Tensors, Tensors]:
        """Return copies of these samples of inputs and targets, on the device."""
        inputs, targets = (moved(rows(part, chosen), self.device) for part in pair)
        return inputs, targets

    def validation_batches(self, parts: Sequence[slice]) -> Iterator[tuple[Tensors, Tensors]]:
        """Yield inputs and targets of each part of the validation data: copies."""
        for part in parts:
            yield self._taken((self.validation_inputs, self.validation_targets), part)

    def own_validation_batch(self, trials: Sequence[Trial], part: slice) -> tuple[Tensors, Tensors]:
        """Return a part of each trial's own validation data; where it is not shared."""
        assert self.folds is not None
        starts = [self.folds.starts[trial.fold] for trial in trials if trial.fold is not None]
        chosen = torch.tensor(starts)[:, None] + torch.arange(part.start, part.stop)
        return self._taken((self.validation_inputs, self.validation_targets), chosen)

    def on_device(self) -> list[torch.Tensor]:
        """Return the tensors that stay on the device."""
        parts = (self.train_inputs, self.train_targets, self.validation_inputs, self.validation_targets)
        return [tensor for part in parts for tensor in (part.values() if isinstance(part, dict) else [part])]


def _parts(data: Data) -> list[Arrays]:
    """Return all arrays of the data: of splits four parts, of folds the pool's inputs and targets."""
    if isinstance(data, Folds):
        return [data.inputs, data.targets]
    return [data.train_inputs, data.train_targets, data.validation_inputs, data.validation_targets]


def home_of(data: Data, device: torch.device) -> torch.device:
    """Return the device if the data fits in half of its free memory, otherwise the host."""
    if device.type != "cuda":
        return device
    num_bytes = sum(array.nbytes for part in _parts(data) for array in named(part).values())
    free, _ = torch.cuda.mem_get_info(device)
    return device if num_bytes <= free / 2 else torch.device("cpu")


def tensors(arrays: Arrays) -> Tensors:
    """Return tensors that share the arrays' memory. `rows` copies out of it, so that no model can write to it."""
    return of_each(arrays, _tensor)


def _tensor(array: np.ndarray) -> torch.Tensor:
    with warnings.catch_warnings():
        # Arrays from the object store are read-only and shared by all trials of a node; models get copies of rows.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array if min(array.strides, default=0) >= 0 else array.copy())


def of_each(parts: Any, function: Callable[[Any], torch.Tensor]) -> Tensors:
    """Return the results of a function of one tensor or array, or of each named one."""
    if isinstance(parts, Mapping):
        return {name: function(each) for name, each in parts.items()}
    return function(parts)


def by_name(parts: Tensors) -> dict[str, torch.Tensor]:
    """Return tensors by name, sorted; a single one has the empty name."""
    return {name: parts[name] for name in sorted(parts)} if isinstance(parts, dict) else {"": parts}


def copied(outputs: Any) -> Any:
    """Copy inputs, targets or a model's outputs: a tensor, or a dict, list, tuple or dataclass of tensors that torch
    knows as one."""
    return tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, outputs)


def moved(parts: Tensors, device: torch.device) -> Tensors:
    """Move tensors to a device."""
    return of_each(parts, methodcaller("to", device))


def cast(parts: Tensors, dtype: torch.dtype | None) -> Tensors:
    """Convert floating-point tensors to another dtype; None leaves them unchanged."""
    return parts if dtype is None else of_each(parts, lambda tensor: in_precision(tensor, dtype))


def in_precision(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert a tensor to the precision of a floating-point dtype: complex numbers stay complex, whole ones
    unchanged."""
    if tensor.is_complex():
        return tensor.to(dtype.to_complex())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def rows(parts: Tensors, chosen: torch.Tensor | slice) -> Tensors:
    """Copy the chosen samples, as a model or a loss may change its arguments in place: (width, batch, ...) for indices
    (width, batch)."""
    return of_each(parts, lambda tensor: _rows(tensor, chosen))


def _rows(tensor: torch.Tensor, chosen: torch.Tensor | slice) -> torch.Tensor:
    if isinstance(chosen, slice):
        return tensor[chosen].clone()
    # index_select is several times faster on a CPU than indexing with a matrix.
    return tensor.index_select(0, chosen.reshape(-1).to(tensor.device)).view(*chosen.shape, *tensor.shape[1:])
