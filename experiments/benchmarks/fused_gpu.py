"""Training throughput on one GPU: arrays of models beside one training alone, and beside processes packed on the GPU.

    python -m experiments.benchmarks.fused_gpu [--seconds-in-all 450] [--networks mlp,cnn,resnet18] [--widths 1,8,64]

Samples/s: the training samples of a window over the seconds that training them took, evaluation left out; of processes
at once, the sum. While one of them evaluates the others go faster, which counts for the packed processes. A point is
the median of its windows. One process measures all widths of a network, since starting one takes longer than a point:
the ways of one width in turns, the model alone before and after the widths. The packed processes are servers too, that
wait for each other before every window; under MPS they run with a daemon of this benchmark's own.

What does not fit into the time is named in the record under "left out"; a point that failed has its reason.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.benchmarks import fused_throughput, record
from experiments.benchmarks.fresh import Server, serve
from experiments.benchmarks.fused_throughput import MANY_EPOCHS, WIDE, WIDTHS, Case, Epoch
from experiments.resnet import ResNet18
from raygpu import Splits, TorchExperiment
from raygpu.devices.host import num_cpus
from raygpu.devices.nvml import gpus
from raygpu.errors import one_line
from raygpu.search.trials import Trial
from raygpu.training.base import Settings

MODULE = "experiments.benchmarks.fused_gpu"
NETWORKS: dict[str, tuple[type[TorchExperiment], dict[str, Any]]] = {
    "mlp": (fused_throughput.NETWORKS["mlp"][0], fused_throughput.NETWORKS["mlp"][1] | {"batch_size": 32}),
    "cnn": (fused_throughput.NETWORKS["cnn"][0], fused_throughput.NETWORKS["cnn"][1] | {"batch_size": 32}),
    "resnet18": (ResNet18, {"channels": 64, "batch_size": 128}),
}
DIGITS = ("mlp", "cnn")
WIDER = (256, 512)
"""Of the MLP alone."""
IMPORTANT = (WIDE, 1, 128, 512, 256, 8)
"""Widths in this order, then the others; of a ResNet from the narrowest to where the memory ends."""
COMPILED_FIRST = {"mlp": (WIDE, 128, 512, 256), "cnn": (WIDE,), "resnet18": (8,)}
"""Compiling takes long: the others' turn comes when all networks had theirs."""
AT_ONCE = (2, 4, 8)
ALONE = "TorchSolo"
ALONE_WAYS = (ALONE, "plain loop")
ALONE_COMPILED = ("plain loop, compiled",)
WAYS = ("eager", "eager, CUDA graph")
COMPILED_WAYS = ("compiled", "compiled, CUDA graph")
COMPILE_S = {"mlp": 12.0, "cnn": 25.0, "resnet18": 60.0}
"""Guesses, until one was seen."""
ROUNDS = 2
START_S = 90.0
"""The longest that a process may take to import torch and find its device."""
POINT_S = 45.0
"""The longest that a task may take, compiling left out; slower ones are left out."""
AT_THE_END_S = 12.0
"""For the plot and the ends of processes."""
GIB = 2**30


@dataclass(frozen=True)
class Task:
    """What one process of a network measures in one go: some ways at one width; width 0 is one model alone."""

    network: str
    width: int
    ways: tuple[str, ...]

    @property
    def compiled(self) -> bool:
        return any("compiled" in way for way in self.ways)

    def case(self, way: str) -> Case:
        return Case(self.network, way, num_cpus(), self.width)


def tasks(networks: Sequence[str], widths: Sequence[int] | None, on_gpu: bool) -> list[list[Task | str]]:
    """In the order of their importance, in groups; a word stands for packed processes, by the way they share."""
    ways, compiled_ways = (WAYS, COMPILED_WAYS) if on_gpu else (WAYS[:1], COMPILED_WAYS[:1])

    def chosen(network: str) -> list[int]:
        own = [*(widths or (*WIDTHS, *(WIDER if network == "mlp" else ())))]
        first = [w for w in IMPORTANT if w in own] if network in DIGITS else []
        return first + sorted(set(own) - set(first))

    def arrays(network: str) -> list[Task | str]:
        again: Task = Task(network, 0, ALONE_WAYS)
        return [again, *(Task(network, width, ways) for width in chosen(network)), again]

    def compiled(network: str, those: Sequence[int]) -> list[Task | str]:
        return [Task(network, width, compiled_ways) for width in those]

    def to_compile(network: str) -> list[int]:
        return [w for w in COMPILED_FIRST[network] if w in chosen(network)] or chosen(network)[:1]

    first = {name: to_compile(name) for name in networks}
    groups: list[list[Task | str]] = []
    for place, name in enumerate(networks):
        groups.append(arrays(name))
        if place == 0:
            groups += [["time-sliced"], ["under MPS"]] if on_gpu else [["time-sliced"]]
            groups.append([Task(name, 0, ALONE_COMPILED), *compiled(name, first[name])])
    for name in networks[1:]:
        groups.append([Task(name, 0, ALONE_COMPILED), *compiled(name, first[name])])
    for name in networks:
        groups.append(compiled(name, [w for w in chosen(name) if w not in first[name]]))
    return groups


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--widths", default=None, help="of the arrays, as in 1,8,64; by default each network's own")
    parser.add_argument("--at-once", default=",".join(map(str, AT_ONCE)), help="packed processes; 2 on the CPU")
    parser.add_argument("--seconds", type=float, default=0.7, help="of each window")
    parser.add_argument("--seconds-in-all", type=float, default=450.0, help="after which nothing more is begun")
    parser.add_argument("--precision", choices=("float32", "tf32"), default="float32")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the benchmark out")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(Child().answer)
        return
    if unknown := [name for name in arguments.networks.split(",") if name not in NETWORKS]:
        parser.error(f"--networks: read {', '.join(unknown)}; there are: {', '.join(NETWORKS)}")
    on_gpu = arguments.device == "cuda"
    if on_gpu and not gpus():
        print("no NVIDIA GPU here; --device cpu tries the benchmark out on the CPU", file=sys.stderr)
        sys.exit(2)
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    widths = [int(width) for width in arguments.widths.split(",")] if arguments.widths else None
    at_once = [int(number) for number in arguments.at_once.split(",")] if on_gpu else [2]
    with tempfile.TemporaryDirectory(prefix="raygpu-bench-", ignore_cleanup_errors=True) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        bench = Bench(arguments, arguments.networks.split(","), at_once)
        bench.mps = bench.mps if on_gpu else "left out: the device is the CPU"
        try:
            bench.start()
            bench.run(tasks(bench.networks, widths, on_gpu))
        finally:
            bench.close()
    rates = bench.medians()
    results = {
        "device": bench.device,
        "MPS": bench.mps,
        "data": {name: "synthetic stand-in of the digits' shape" for name in bench.networks if stands_in(name)},
        "points": {case.label: point for case, point in bench.points.items()},
        "samples/s, medians": {case.label: round(rate) for case, rate in rates.items()},
        "left out": bench.left_out,
        "seconds in all": round(bench.passed),
        "ratios": ratios(bench.networks, rates),
    }
    configuration = {name: value for name, value in vars(arguments).items() if name != "serve"}
    path = record.write("fused_gpu", results, configuration | {"rounds": ROUNDS, "networks": bench.networks})
    plot(path.with_suffix(".png"), bench.networks, rates, str(bench.device.get("name")))


@dataclass
class Bench:
    """The run: its processes, its time, and what was found."""

    arguments: argparse.Namespace
    networks: list[str]
    at_once: list[int]
    points: dict[Case, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    device: dict[str, Any] = field(default_factory=dict)
    mps: str = "not tried"
    started: float = field(default_factory=time.monotonic)
    servers: dict[str, Server] = field(default_factory=dict)
    out_of_memory: dict[str, int] = field(default_factory=dict)
    """The narrowest width of each network that did not fit."""
    epoch_s: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Of each network, the widest array so far and its slowest epoch."""
    compile_s: dict[str, float] = field(default_factory=lambda: dict(COMPILE_S))

    @property
    def passed(self) -> float:
        return time.monotonic() - self.started

    @property
    def left(self) -> float:
        return float(self.arguments.seconds_in_all) - AT_THE_END_S - self.passed

    def start(self) -> None:
        """Each network's process. Exits where the device is not there."""
        for network in self.networks:
            self.servers[network] = self.server(num_cpus())
        try:
            self.greet([*self.servers.values()])
        except RuntimeError as error:
            print(one_line(error), file=sys.stderr)
            sys.exit(2)

    def run(self, groups: list[list[Task | str]]) -> None:
        for task in (task for group in groups for task in group):
            if isinstance(task, Task):
                self.measure(task)
            elif task == "time-sliced":
                self.measure_packed(task, {})
            else:
                self.measure_under_mps(task)

    def measure(self, task: Task) -> None:
        """One task in its network's process, if there is time for it."""
        labels = [task.case(way).label for way in task.ways]
        guess = self.guess(task)
        if task.width > (limit := self.out_of_memory.get(task.network, task.width)):
            return self.leave_out(labels, f"out of memory at width {limit} already")
        if guess > self.left:
            return self.leave_out(labels, f"takes {guess:.0f} s or so, {max(0.0, self.left):.0f} s were left")
        if (slow := guess - self.compile_s[task.network] * task.compiled) > POINT_S:
            return self.leave_out(labels, f"too slow: {slow:.0f} s or so by its narrower array")
        try:
            found = self.asked(task)
        except RuntimeError as error:
            if server := self.servers.pop(task.network, None):
                server.kill()  # after some errors of CUDA a process can do nothing more: the next task gets a new one
            for way in task.ways:
                self.points.setdefault(task.case(way), {"samples_per_s": None, "reason": str(error)})
            print(f"failed: {', '.join(labels)}: {str(error)[-300:]}", flush=True)
            return None
        for way, point in found["ways"].items():
            self.note(task.case(way), point)
            if point.get("out_of_memory"):
                self.out_of_memory[task.network] = min(task.width, self.out_of_memory.get(task.network, task.width))
        if task.width:
            self.epoch_s[task.network] = max(self.epoch_s.get(task.network, (0, 0.0)), (task.width, found["epoch_s"]))
        if task.compiled and (seen := max(point.get("warm_s", 0.0) for point in found["ways"].values())):
            self.compile_s[task.network] = seen
        return None

    def asked(self, task: Task) -> dict[str, Any]:
        """What the network's process answers. Raises RuntimeError."""
        server = self.servers.get(task.network)
        if server is None:
            server = self.servers[task.network] = self.server(num_cpus())
            self.greet([server])
        within_s = min(self.left, POINT_S + 2 * self.compile_s[task.network] * task.compiled)
        server.ask({"do": "point", "network": task.network, "width": task.width, "ways": task.ways, "within": within_s})
        return reply(server, within_s + 10)

    def guess(self, task: Task) -> float:
        """Seconds that a task will take."""
        width, epoch_s = self.epoch_s.get(task.network, (1, 0.1)) if task.width else (1, 0.1)
        epoch_s *= max(1.0, task.width / width)
        windows_s = len(task.ways) * (ROUNDS * max(self.arguments.seconds, epoch_s) + 3 * epoch_s)
        start_s = 0 if task.network in self.servers else 10
        return float(start_s + 0.5 + windows_s + self.compile_s[task.network] * task.compiled)

    def server(self, threads: int, environment: Mapping[str, str] | None = None) -> Server:
        server = Server(MODULE, threads, environment)
        own = {name: getattr(self.arguments, name) for name in ("seconds", "precision", "device")}
        server.ask({"do": "hello", "threads": threads, **own})
        return server

    def greet(self, servers: Sequence[Server]) -> None:
        """Wait until processes are there. Raises RuntimeError."""
        for server in servers:
            self.device = reply(server, START_S)

    def note(self, case: Case, point: dict[str, Any]) -> None:
        """Add a point's windows to those that it has."""
        known = self.points.setdefault(case, {"samples_per_s": None, "windows": []})
        windows = [*known.get("windows", []), *point.pop("windows")]
        self.points[case] = known = known | point | {"windows": windows}
        if windows:
            known["samples_per_s"] = round(median(windows), 1)
        rate = known["samples_per_s"]
        shown = f"{rate:12,.0f} samples/s" if rate is not None else f"{'none':>12}          "
        print(
            f"{self.passed:4.0f} s {shown}  {case.label}{'  ' + point['reason'] if 'reason' in point else ''}",
            flush=True,
        )

    def leave_out(self, labels: Sequence[str], why: str) -> None:
        self.left_out |= dict.fromkeys(labels, why)

    def measure_packed(self, way: str, environment: Mapping[str, str]) -> None:
        """Each network in processes of their own that begin every window together."""

        def case(network: str, number: int) -> Case:
            return Case(network, f"{ALONE}, {way}", 1, at_once=number)

        waiting = [case(network, number) for network in self.networks for number in self.at_once]
        if self.left < 30:
            self.mps = "left out: no time left" if way == "under MPS" else self.mps
            self.leave_out([each.label for each in waiting], f"{max(0.0, self.left):.0f} s were left")
            return
        servers = [self.server(1, environment) for _ in range(max(self.at_once))]
        why = ""
        try:
            self.greet(servers)
            if way == "under MPS":
                self.mps = f"used: {mps_clients(environment)}"
            for network in self.networks:
                if self.left < 10:
                    why = f"{max(0.0, self.left):.0f} s were left"
                    break
                for place, server in enumerate(servers):
                    server.ask({"do": "prepare", "network": network, "place": place})
                for server in servers:
                    reply(server, POINT_S)
                for backwards in range(ROUNDS):
                    for number in reversed(self.at_once) if backwards % 2 else self.at_once:
                        for server in servers[:number]:
                            server.ask({"do": "window"})
                        found = [reply(server, POINT_S) for server in servers[:number]]
                        peak = max((part["peak_gib"] for part in found), default=0)
                        rate = round(sum(part["samples_per_s"] for part in found), 1)
                        self.note(case(network, number), {"windows": [rate], "peak_gib of each": peak})
        except RuntimeError as error:
            why = one_line(error)[-300:]
            if way == "under MPS":
                self.mps = f"failed: {why}{mps_log(environment)}"
        finally:
            for server in servers:
                server.ask({"do": "end"})
            for server in servers:
                server.close()
        self.leave_out([each.label for each in waiting if each not in self.points], why)

    def measure_under_mps(self, way: str) -> None:
        """As packed processes, with a daemon of our own; without one, a line says why there is none."""
        try:
            with mps_daemon() as environment:
                self.measure_packed(way, environment)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self.mps = f"left out: {one_line(error)[-300:]}"
        if not self.mps.startswith("used"):
            print(f"MPS {self.mps}", file=sys.stderr)
            labels = [Case(n, f"{ALONE}, {way}", 1, at_once=k).label for n in self.networks for k in self.at_once]
            self.leave_out([label for label in labels if label not in self.left_out], f"MPS {self.mps}")
            # Half a measurement, or one that was not under MPS after all, is none.
            self.points = {case: point for case, point in self.points.items() if not case.way.endswith(way)}

    def medians(self) -> dict[Case, float]:
        return {case: point["samples_per_s"] for case, point in self.points.items() if point["samples_per_s"]}

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


def reply(server: Server, within_s: float) -> dict[str, Any]:
    """An answer that is no error. Raises RuntimeError."""
    found = server.answer(within_s)
    if "reason" in found:
        raise RuntimeError(found["reason"])
    return found


@contextmanager
def mps_daemon() -> Iterator[dict[str, str]]:
    """A control daemon of our own; what its clients need in their environment. Raises RuntimeError and OSError."""
    control = _mps_control()
    folder = Path(tempfile.mkdtemp(prefix="raygpu-mps-"))
    own = {"CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
    for path in own.values():
        Path(path).mkdir()
    try:
        # Not captured: the daemon would keep the pipes, and whoever reads them, open.
        with (folder / "start").open("w+") as output:
            done = subprocess.run(
                [control, "-d"],
                env=os.environ | own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=30,
            )
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"nvidia-cuda-mps-control -d: status {done.returncode}: {output.read().strip()}")
        try:
            yield own
        finally:
            mps_asked(own, "quit")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _mps_control() -> str:
    """Raises RuntimeError."""
    name = "nvidia-cuda-mps-control"
    found = shutil.which(name) or shutil.which(name, path="/usr/local/nvidia/bin:/usr/bin")
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def mps_asked(environment: Mapping[str, str], question: str) -> str:
    """The daemon's answer, or nothing."""
    try:
        done = subprocess.run(
            [_mps_control()],
            env=os.environ | environment,
            input=question + "\n",
            capture_output=True,
            text=True,
            timeout=20,
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip()


def mps_clients(environment: Mapping[str, str]) -> str:
    """How many processes use the daemon. Raises RuntimeError if none does: CUDA says nothing when it goes without."""
    servers = mps_asked(environment, "get_server_list").split()
    clients = [client for pid in servers for client in mps_asked(environment, f"get_client_list {pid}").split()]
    if not clients:
        raise RuntimeError("the daemon runs, and no process became its client")
    return f"{len(clients)} clients of {len(servers)} server{'s' if len(servers) > 1 else ''}"


def mps_log(environment: Mapping[str, str]) -> str:
    """The last lines of the daemon's logs."""
    lines: list[str] = []
    for path in sorted(Path(environment["CUDA_MPS_LOG_DIRECTORY"]).glob("*.log")):
        lines += path.read_text(errors="replace").splitlines()[-3:]
    return f"; its log: {' | '.join(lines)}" if lines else ""


class Child:
    """In a process of its own: what it is asked for, on the device that it sees."""

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


def stands_in(network: str) -> bool:
    """Whether the digits are not there, because scikit-learn is not."""
    return network in DIGITS and importlib.util.find_spec("sklearn") is None


def experiment_of(network: str) -> TorchExperiment:
    """With noise of the digits' shapes in their place where they are not there."""
    kind = NETWORKS[network][0]
    if not stands_in(network):
        return kind()
    named: TorchExperiment = type(kind.__name__, (kind,), {"data": lambda _: noise()})()
    return named


def noise() -> Splits:
    """Of the shapes of `experiments.digits.digits`."""
    rng = np.random.default_rng(0)
    inputs, targets = rng.random((1437 + 360, 64), dtype=np.float32), rng.integers(0, 10, 1437 + 360)
    return Splits(inputs[:1437], targets[:1437], inputs[1437:], targets[1437:])


def trials_of(network: str, count: int) -> list[Trial]:
    """DrawnTrials as `fused_throughput` does, without `raygpu.search.space`: pydantic may not be on a GPU's machine."""
    rng = np.random.default_rng(0)
    drawn = [{"lr": float(10 ** rng.uniform(-3, 0)), "momentum": float(rng.uniform(0, 0.95))} for _ in range(count)]
    return [Trial(Trial.name(i), i, hp | NETWORKS[network][1]) for i, hp in enumerate(drawn)]


def ratios(networks: Sequence[str], rates: Mapping[Case, float]) -> dict[str, float]:
    """Of the medians: the best array, and those of the widths that matter, over the best of every other way."""
    found: dict[str, float] = {}
    for network in networks:
        own = {case: rate for case, rate in rates.items() if case.network == network}
        arrays = {case: rate for case, rate in own.items() if case.width}
        alone = [rate for case, rate in own.items() if not case.width and case.at_once == 1]
        ones = [rate for case, rate in arrays.items() if case.width == 1]
        goals = (" (goal >= 30)", " (goal > 4.72)") if network == "mlp" else ("", "")
        below = [
            (f"best alone{goals[0]}", alone),
            ("best of one model, alone or as an array of one", [*alone, *ones] if ones else []),
            (
                f"best packed processes under MPS{goals[1]}",
                [rate for case, rate in own.items() if case.way.endswith("under MPS")],
            ),
            ("best packed processes time-sliced", [r for c, r in own.items() if c.way.endswith("time-sliced")]),
        ]
        if not arrays:
            continue
        best = max(arrays, key=lambda case: arrays[case])
        above = {f"best array ({best.width}, {best.way})": arrays[best]}
        for width in (WIDE, 128):
            if those := [rate for case, rate in arrays.items() if case.width == width]:
                above[f"array of {width}"] = max(those)
        for name, rate in above.items():
            for other, those in below:
                if those:
                    found[f"{network}: {name} / {other}"] = round(rate / max(those), 3)
    return found


def plot(path: Path, networks: Sequence[str], rates: Mapping[Case, float], device: str) -> None:
    """Samples/s against the width, a panel for each network, with lines for one alone and for packed processes."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(networks), figsize=(6 * len(networks), 4.5), squeeze=False)
    for axes, network in zip(panels[0], networks, strict=True):
        own = {case: rate for case, rate in rates.items() if case.network == network}
        for way, marker in zip((*WAYS, *COMPILED_WAYS), "o^sD", strict=True):
            points = sorted((case.width, rate) for case, rate in own.items() if case.width and case.way == way)
            if points:
                axes.plot(*zip(*points, strict=True), marker=marker, label=f"array, {way}")
        for name, style, those in (
            ("one training alone, best way", "--", [r for c, r in own.items() if not c.width and c.at_once == 1]),
            ("packed processes, time-sliced", ":", [r for c, r in own.items() if c.way.endswith("time-sliced")]),
            ("packed processes under MPS", "-.", [r for c, r in own.items() if c.way.endswith("under MPS")]),
        ):
            if those:
                axes.axhline(max(those), linestyle=style, color="grey", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("width: models that step as one program")
        axes.set_ylabel("training samples/s, all members")
        axes.set_title(f"{network}, batch size {NETWORKS[network][1]['batch_size']}, {device}")
        axes.grid(visible=True, which="both", alpha=0.3)
        if own:
            axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    print(f"plot: {path}")


if __name__ == "__main__":
    main()
