"""Memory that a placed torch model takes on each of its devices: measured on GPUs, computed on logical devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from raygpu.training.memory_usage import GIB
from raygpu.training.torch.experiment_optimizer import AnyOptimizer
from raygpu.training.torch.parameter_average import ParameterAverage, average_dtype


class PlacedMemory:
    """The memory of each device: torch's peak on a GPU of its own; on logical devices of a CPU or of one GPU, what a
    step keeps: data, parameters, their gradients, optimizer state, and activations saved for the backward pass."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._devices = devices
        self.measured = len(set(devices)) == len(devices) and all(device.type == "cuda" for device in devices)
        """Whether it is the GPUs' own peak."""
        self._index: dict[int, int] = {}
        """Device index of each parameter and buffer, by its id."""
        self._bytes = [0] * len(devices)
        self._saved: dict[int, tuple[int, int]] = {}
        """Bytes and device index of each saved activation, by its storage's address."""
        self._own: dict[int, torch.UntypedStorage] = {}
        """Storages of parameters and buffers by their addresses, which no activation gets while they are kept here."""
        for device in devices if self.measured else ():
            torch.cuda.reset_peak_memory_stats(device)

    def placed(self, tensor: torch.Tensor, index: int) -> None:
        """Note a parameter or buffer on a device; one that is known already counts once."""
        if id(tensor) not in self._index:
            self._bytes[index] += tensor.nbytes * (2 if tensor.requires_grad else 1)
        self._index[id(tensor)] = index
        storage = tensor.untyped_storage()
        self._own[storage.data_ptr()] = storage

    def held(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note data that stays on device 0."""
        self._bytes[0] += sum(tensor.nbytes for tensor in tensors)

    @contextmanager
    def recorded(self, under_way: Callable[[], int]) -> Iterator[None]:
        """Note the activations that a step saves. under_way: returns the index of the device that works."""
        self._saved = {}

        def pack(value: torch.Tensor) -> torch.Tensor:
            """Note a saved tensor's storage, unless it is a parameter's."""
            storage = value.untyped_storage()
            if storage.data_ptr() not in self._own:
                self._saved.setdefault(storage.data_ptr(), (storage.nbytes(), under_way()))
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            yield

    def gib(self, optimizer: AnyOptimizer, average: ParameterAverage | None) -> tuple[float, ...]:
        """Return the memory of each device in GiB."""
        if self.measured:
            return tuple(torch.cuda.max_memory_allocated(device) / GIB for device in self._devices)
        totals = list(self._bytes)
        for parameter, buffers in zip(optimizer.parameters, optimizer.buffers, strict=True):
            totals[self._index[id(parameter)]] += sum(buffer.nbytes for buffer in buffers)
        for value in average.values if average is not None else ():
            index = self._index.get(id(value), 0)  # a buffer that a step has replaced is on any device
            totals[index] += value.numel() * average_dtype(value).itemsize
        for num_bytes, index in self._saved.values():
            totals[index] += num_bytes
        return tuple(num_bytes / GIB for num_bytes in totals)
