"""The process that measures what the run asks for, on the device that it sees.

python -m experiments.benchmarks.fused_gpu.server --serve
"""

from __future__ import annotations

import gc
import time
from pathlib import Path
from typing import Any

from experiments.benchmarks import fused_throughput
from experiments.benchmarks.fresh import serve
from experiments.benchmarks.fused_gpu.cases import ALONE, ROUNDS, experiment_of, trials_of
from experiments.benchmarks.fused_throughput import MANY_EPOCHS, Epoch
from raygpu.errors import one_line
from raygpu.training.base import Settings

GIB = 2**30


class Child:
    """Measures what it is asked for."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.settings = Settings(MANY_EPOCHS, 1, "float32", Path())
        self.on_gpu = False
        self.prepared: Epoch | None = None
        self.alone: dict[tuple[str, str], Epoch] = {}
        """Of one model, kept to be measured again."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Never raises: a failure is an answer with a reason."""
        do = request.pop("do")
        try:
            return dict(getattr(self, do)(**request))
        except Exception as error:  # noqa: BLE001 - whatever it is, the benchmark goes on without this point
            return failure(error)

    def hello(self, seconds: float, precision: Any, device: str, threads: int) -> dict[str, Any]:
        import torch

        self.seconds = seconds
        self.settings = Settings(MANY_EPOCHS, threads, precision, Path())
        self.on_gpu = torch.cuda.is_available()
        if device == "cuda" and not self.on_gpu:
            raise RuntimeError("torch finds no CUDA device here")
        if not self.on_gpu:
            return {"name": "the CPU"}
        torch.zeros(1, device="cuda")  # the context
        properties = torch.cuda.get_device_properties(0)
        return {
            "name": properties.name,
            "memory_gib": round(properties.total_memory / GIB, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }

    def prepare(self, network: str, place: int) -> dict[str, Any]:
        """One model, the packed processes each with another trial."""
        self.prepared = None
        self.clean()
        self.prepared = fused_throughput.solo_epochs(
            experiment_of(network), trials_of(network, place + 1)[-1], self.settings
        )
        for _ in range(2):
            self.prepared()
        return {}

    def window(self) -> dict[str, Any]:
        assert self.prepared is not None
        rate, _ = self.timed(self.prepared)
        return {"samples_per_s": rate, "peak_gib": self.peak_gib(0)}

    def end(self) -> dict[str, Any]:
        self.prepared = None
        self.clean()
        return {}

    def point(self, network: str, width: int, ways: list[str], within: float) -> dict[str, Any]:
        """Windows of each way in turns, the second time backwards."""
        before = self.clean()
        until = time.perf_counter() + within
        found: dict[str, dict[str, Any]] = {way: {"windows": []} for way in ways}
        array: Any = None
        slowest = 0.0
        now: str | None = None
        epoch: Epoch | None = None
        for number in range(ROUNDS):
            for way in reversed(ways) if number % 2 else ways:
                point = found[way]
                if "reason" in point:
                    continue
                if time.perf_counter() > until:
                    point.setdefault("cut short", f"{within:.0f} s were over")
                    if not point["windows"]:
                        point["reason"] = point["cut short"]
                    continue
                try:
                    if way != now:
                        now, epoch = way, None
                        started = time.perf_counter()
                        if width:
                            array = array or self.array(network, width, compiled="compiled" in way)
                            epoch = self.turned(array, way)
                        else:
                            epoch = self.one(network, way)
                        for _ in range(1 if point["windows"] else 2):
                            epoch()
                        point.setdefault("warm_s", round(time.perf_counter() - started, 2))
                    assert epoch is not None
                    rate, epoch_s = self.timed(epoch)
                    point["windows"].append(rate)
                    point["peak_gib"] = max(point.get("peak_gib", 0.0), self.peak_gib(before))
                    slowest = max(slowest, epoch_s)
                except Exception as error:  # noqa: BLE001 - out of memory, an operator that cannot be recorded ...
                    point |= failure(error)
                    now = epoch = None
                    if width and way == ways[0] and "out_of_memory" in point:
                        for other in ways[1:]:  # none of them needs less
                            found[other] |= failure(error)
                if "reason" in point and width:
                    array = None if array is None else self.without_graphs(array)
                    self.clean()
        return {"ways": found, "epoch_s": slowest}

    def array(self, network: str, width: int, *, compiled: bool) -> Any:
        from raygpu.training.fused.model_array import TorchArray

        experiment = experiment_of(network)
        array = TorchArray(experiment, experiment.data(), trials_of(network, width), self.settings, width=width)
        if compiled:
            array.program.compile(width, array.batch_size)
        return array

    def turned(self, array: Any, way: str) -> Epoch:
        """The array's epochs in one of its ways."""
        self.without_graphs(array)
        self.clean()
        array.graphs = "CUDA graph" in way
        return fused_throughput.epochs_of(array)

    def without_graphs(self, array: Any) -> Any:
        for tile in array.tiles:
            tile.graphed = None
        return array

    def one(self, network: str, way: str) -> Epoch:
        """The epochs of one model alone, the same one each time."""
        if (network, way) not in self.alone:
            experiment, trial = experiment_of(network), trials_of(network, 1)[0]
            if way == ALONE:
                self.alone[network, way] = fused_throughput.solo_epochs(experiment, trial, self.settings)
            else:
                compiled = "compiled" in way
                self.alone[network, way] = fused_throughput.plain_epochs(
                    experiment, trial, self.settings, compiled=compiled
                )
        return self.alone[network, way]

    def timed(self, epoch: Epoch) -> tuple[float, float]:
        """One window: samples/s of training, and the seconds of its slowest epoch, evaluation included."""
        samples, train_s, slowest = 0, 0.0, 0.0
        started = time.perf_counter()
        while not samples or time.perf_counter() - started < self.seconds:
            before = time.perf_counter()
            num_samples, seconds = epoch()
            samples, train_s = samples + num_samples, train_s + seconds
            slowest = max(slowest, time.perf_counter() - before)
        return round(samples / train_s, 1), slowest

    def clean(self) -> int:
        """Give back what nobody holds; the bytes that are held. The peak is counted from here."""
        if not self.on_gpu:
            return 0
        import torch

        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())

    def peak_gib(self, before: int) -> float:
        """Of the device's memory, beyond `before` bytes; 0 on the CPU."""
        if not self.on_gpu:
            return 0.0
        import torch

        return round((torch.cuda.max_memory_allocated() - before) / GIB, 3)


def failure(error: Exception) -> dict[str, Any]:
    """An answer with a reason. Out of memory may be the cause of what was raised, as in the recording of a graph."""
    import torch

    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, torch.cuda.OutOfMemoryError) or "out of memory" in str(cause).lower():
            return {"reason": f"out of memory: {one_line(cause)[:300]}", "out_of_memory": True}
    return {"reason": one_line(error)[:300]}


if __name__ == "__main__":
    serve(Child().answer)
