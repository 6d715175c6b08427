"""A run of the benchmark: its processes, its time, and what was found."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from experiments.benchmarks.fresh import Server
from experiments.benchmarks.fused_gpu.cases import ALONE, COMPILE_S, ROUNDS, Task
from experiments.benchmarks.fused_gpu.own_mps import mps_clients, mps_daemon, mps_log
from experiments.benchmarks.fused_throughput import Case
from raygpu.devices.host import num_cpus
from raygpu.errors import one_line

SERVER = "experiments.benchmarks.fused_gpu.server"
START_S = 90.0
"""The longest that a process may take to import torch and find its device."""
POINT_S = 45.0
"""The longest that a task may take, compiling left out; slower ones are left out."""
AT_THE_END_S = 12.0
"""For the plot and the ends of processes."""


@dataclass
class Run:
    """A run of the benchmark."""

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
        """Seconds that a task will take; those of an array of which no narrower one was measured are not known."""
        width, epoch_s = (self.epoch_s.get(task.network) if task.width else None) or (max(1, task.width), 0.1)
        epoch_s *= max(1.0, task.width / width)
        windows_s = len(task.ways) * (ROUNDS * max(self.arguments.seconds, epoch_s) + 3 * epoch_s)
        start_s = 0 if task.network in self.servers else 10
        return float(start_s + 0.5 + windows_s + self.compile_s[task.network] * task.compiled)

    def server(self, threads: int, environment: Mapping[str, str] | None = None) -> Server:
        server = Server(SERVER, threads, environment)
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
