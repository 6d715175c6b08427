"""Batches of samples that are read while a training goes on: by torch's DataLoader, in processes beside it."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from raygpu.errors import one_line
from raygpu.training.data.fields import Batch, SampleError
from raygpu.training.data.samples import Samples
from raygpu.training.data.stream import Stream
from raygpu.training.torch.torch_private_api import end_processes

READ_AHEAD = 2
"""Batches that are read before they are asked for, by a thread."""
Part = dict[str, torch.Tensor]
"""Tensors by name; a single one has the empty name."""


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """The samples of a batch."""

    part: str
    """`train` or `validation`."""
    rows: np.ndarray
    """Numbers of the samples in their data set."""
    epoch: int


class Loader:
    """Reads batches of the training and of the validation samples of one training.

    The processes are started by the first batches that are not in a cache, and serve all epochs. While there are any,
    nothing is read beside them: a file that the data set opens at its first read would be shared with those that are
    forked later, and so would the place in it. threads: CPU threads of the training; the workers are of that number at
    most.
    """

    def __init__(self, samples: Mapping[str, Samples], device: torch.device, threads: int) -> None:
        self._samples, self._device = samples, device
        self.num_workers = min(_num_workers(each, device, threads) for each in samples.values())
        """Processes that read samples; 0 reads in this one."""
        self.waited_s = 0.0
        """Seconds that the training has waited for samples since the last `take_waited`."""
        self._plan = _Plan(iter(()))
        self._torchs: DataLoader[Any] | None = None
        self._reading: Generator[tuple[Part, Part]] | None = None
        """The latest iteration over what the processes read."""
        self._turn = 0

    def batch(self, request: BatchRequest) -> tuple[Part, Part]:
        """Read one batch now. Raises SampleError."""
        if self.num_workers and not self._samples[request.part].is_ready:
            (tensors,) = self.batches(request.part, iter([request]))
            return tensors
        started = time.perf_counter()
        tensors = _as_tensors(self._samples[request.part].batch(request.rows, request.epoch))
        self.waited_s += time.perf_counter() - started
        return tensors

    def batches(self, part: str, requests: Iterator[BatchRequest]) -> Iterator[tuple[Part, Part]]:
        """Read batches of a part ahead, and yield them in order. Raises SampleError."""
        self._turn += 1
        if all(samples.is_ready for samples in self._samples.values()):
            self._end_processes()
        if self._samples[part].is_ready:
            yield from self._from_cache(requests)
        elif not self.num_workers:
            yield from map(self.batch, requests)
        else:
            self._reading = self._from_workers(requests, self._turn)
            yield from self._reading

    def take_waited(self) -> float:
        """Return the seconds that the training has waited for samples since the last call."""
        seconds, self.waited_s = self.waited_s, 0.0
        return seconds

    def _from_cache(self, requests: Iterator[BatchRequest]) -> Iterator[tuple[Part, Part]]:
        """Read ahead in a thread: all samples are in the cache, and no code of the user runs."""
        with ThreadPoolExecutor(1) as thread:
            waiting: deque[Future[Batch]] = deque()

            def read_ahead(count: int) -> None:
                """Have the thread read the next batches."""
                for each in islice(requests, count):
                    waiting.append(thread.submit(self._samples[each.part].batch, each.rows, each.epoch))

            read_ahead(READ_AHEAD)
            while waiting:
                started = time.perf_counter()
                batch = _as_tensors(waiting.popleft().result())
                self.waited_s += time.perf_counter() - started
                read_ahead(1)
                yield batch

    def _from_workers(self, requests: Iterator[BatchRequest], turn: int) -> Generator[tuple[Part, Part]]:
        """Have the processes read. If another call takes them over meanwhile, the rest is read batch by batch."""
        asked: deque[BatchRequest] = deque()

        def noted() -> Iterator[BatchRequest]:
            """Yield the requests, and keep those that are not answered yet."""
            for request in requests:
                asked.append(request)
                yield request

        started = time.perf_counter()
        self._plan.requests = noted()
        with garbage_kept_in_children():
            batches = iter(self._started())
        while self._turn == turn:
            answer = self._next(batches)
            self.waited_s += time.perf_counter() - started
            if answer is None:
                return
            if isinstance(answer, str):
                raise SampleError(answer)
            asked.popleft()
            yield answer
            started = time.perf_counter()
        yield from map(self.batch, chain(asked, requests))

    def _next(self, batches: Iterator[Any]) -> Any:
        """Return torch's next batch; None after the last one. Raises SampleError if a process has ended, or hangs."""
        try:
            return next(batches, None)
        except (RuntimeError, OSError, EOFError) as error:
            self._end_processes()
            raise SampleError(f"the processes that read samples have failed: {one_line(error)}") from error

    def _started(self) -> DataLoader[Any]:
        """Return torch's loader, made at the first use."""
        if self._torchs is None:
            options = {"pin_memory": self._device.type == "cuda", **self._samples["train"].reading.loader}
            options["num_workers"] = self.num_workers
            self._torchs = DataLoader(
                _Dataset(self._samples),
                sampler=self._plan,
                batch_size=None,
                collate_fn=_unchanged,
                generator=torch.Generator(),  # torch's loader draws from the training's own without one
                persistent_workers=True,
                **options,
            )
        return self._torchs

    def close(self) -> None:
        """End the processes. A cache stays open for the next training of this process."""
        self._turn += 1
        if self._reading is not None:
            self._reading.close()
        self._reading = None
        self._end_processes()

    def _end_processes(self) -> None:
        if self._torchs is not None:
            end_processes(self._torchs)
        self._torchs = None


@contextmanager
def garbage_kept_in_children() -> Iterator[None]:
    """Keep what exists now from the garbage collection of the processes that are forked meanwhile.

    CUDA ends a forked process that frees a tensor of a GPU.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _num_workers(samples: Samples, device: torch.device, threads: int) -> int:
    """Return the number of processes that read samples: those asked for, within the training's CPU threads.

    A training on a CPU has work for one thread of its own, and a stream is read by one process. Samples that this
    process has read itself, as one that calls `dataset_splits`, are read by it alone.
    """
    if samples.needs_training_process or samples.is_read_here:
        return 0
    room = threads if device.type == "cuda" else threads - 1
    if isinstance(samples, Stream):
        room = min(room, 1)  # several would read the same samples
    return max(0, min(samples.reading.loader.get("num_workers", room), room))


@dataclass(slots=True)
class _Plan:
    """The sampler of torch's loader: the batches of the present call."""

    requests: Iterator[BatchRequest]

    def __iter__(self) -> Iterator[BatchRequest]:
        return self.requests


class _Dataset:
    """The data set of torch's loader, whose items are whole batches."""

    def __init__(self, samples: Mapping[str, Samples]) -> None:
        self._samples = samples

    def __getitem__(self, request: BatchRequest) -> tuple[Part, Part] | str:
        """Return a batch; in place of an exception, which torch would bury in a traceback, its message."""
        try:
            return _as_tensors(self._samples[request.part].batch(request.rows, request.epoch))
        except SampleError as error:
            return str(error)


def _unchanged(batch: Any) -> Any:
    return batch


def _as_tensors(batch: Batch) -> tuple[Part, Part]:
    inputs, targets = ({name: torch.from_numpy(array) for name, array in part.items()} for part in batch)
    return inputs, targets
