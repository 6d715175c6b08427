"""Memory of a process that left: seen by NVML's list, by the device's free memory, and never waited for without end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from raygpu.devices import memory_release, nvml
from raygpu.devices.memory_release import wait_for_departed
from tests.fakes.nvml import FakeDevice, FakeNvml

LISTS = {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"}


class Time:
    """A clock that goes on while it is slept by; `happens` is called at every sleep with the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, happens: Callable[[float], None] = lambda now: None) -> None:
        monkeypatch.setattr(memory_release, "time", self)
        self.now = 100.0
        self.happens = happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds
        self.happens(self.now - 100.0)

    def waited_s(self, uuid: str, needed_gib: float) -> float:
        wait_for_departed(uuid, needed_gib)
        return self.now - 100.0


def card(monkeypatch: pytest.MonkeyPatch, unsupported: set[str] = frozenset()) -> tuple[str, FakeDevice]:
    fake = FakeNvml(["NVIDIA A100"], unsupported).install(monkeypatch)
    device = fake.devices[0]
    device.used_gib, device.processes = 6.0, {10: 2.0, 11: 3.0, 12: 1.0}
    return fake.uuids[0], device


ON_GPU = """
import sys, torch
held = torch.empty(2**30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("up", flush=True)
sys.stdin.readline()
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
def test_a_process_leaves_a_real_card() -> None:
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    process = subprocess.Popen([sys.executable, "-c", ON_GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    torch.ones(1, device="cuda")
    held = nvml.memory(uuid)
    process.communicate("\n", timeout=30)
    wait_for_departed(uuid, 1.0)
    free = nvml.memory(uuid)
    assert held is not None
    assert free is not None
    assert free.free_gib > held.free_gib + 0.9


def test_the_departed_are_waited_for_by_the_list_that_has_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, device = card(monkeypatch)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    device.processes = {os.getpid(): 0.5, gone.pid: 3.0}
    time = Time(monkeypatch, lambda now: device.processes.pop(gone.pid, None) if now > 2 else None)
    assert 2 < time.waited_s(uuid, 1.0) < 2.5


def test_a_neighbour_that_lives_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, device = card(monkeypatch)
    device.processes = {os.getpid(): 0.5, os.getppid(): 15.0}
    time = Time(monkeypatch)
    assert time.waited_s(uuid, 1.0) == 0


def test_in_a_container_free_memory_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, device = card(monkeypatch)
    device.processes, device.used_gib = {1234567: 15.5}, 15.5  # the host's pids

    def happens(now: float) -> None:
        device.used_gib = 15.5 - 3 * min(now, 4)

    time = Time(monkeypatch, happens)
    assert 2 < time.waited_s(uuid, 8.0) < 3

    device.used_gib = 15.5
    still = Time(monkeypatch)
    assert still.waited_s(uuid, 8.0) < 1, "neighbours hold it: there is nothing to wait for"


def test_the_wait_for_the_departed_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, device = card(monkeypatch)
    device.processes = {os.getpid(): 0.5, 2**22 + 1: 3.0}
    time = Time(monkeypatch)
    assert time.waited_s(uuid, 1.0) == pytest.approx(30, abs=0.01)


def test_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    uuid, _ = card(monkeypatch, LISTS | {"nvmlDeviceGetMemoryInfo"})
    time = Time(monkeypatch)
    assert time.waited_s(uuid, 1.0) == 0
