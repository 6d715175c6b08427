"""Memory caps: the arithmetic, a real one on the CPU, and a real one on a GPU where there is one."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from raygpu.devices import limits
from raygpu.devices.limits import cap_torch, measure_context_gib, tensorflow_limit_mib, torch_fraction
from tests.fakes.nvml import FakeNvml


def test_the_context_comes_out_of_the_share() -> None:
    assert torch_fraction(total_gib=16, share_gib=4, context_gib=0.4) == pytest.approx(0.225)
    assert tensorflow_limit_mib(share_gib=4, context_gib=0.5) == 3584
    assert torch_fraction(total_gib=16, share_gib=17, context_gib=0) == 1.0


def test_a_share_that_holds_no_more_than_the_context() -> None:
    with pytest.raises(MemoryError, match=r"a share of 0\.40 GiB .* context of 0\.50 GiB: take a larger fraction"):
        torch_fraction(total_gib=16, share_gib=0.4, context_gib=0.5)
    with pytest.raises(MemoryError, match="larger fraction"):
        tensorflow_limit_mib(share_gib=0.5, context_gib=0.5)


@given(total=st.floats(4, 200), count=st.integers(1, 16), context=st.floats(0.05, 0.24))
def test_all_shares_together_fit(total: float, count: int, context: float) -> None:
    """N processes at their caps, contexts included, hold no more than the GPU has."""
    allocator = torch_fraction(total, total / count, context) * total
    assert count * (allocator + context) <= total * (1 + 1e-9)
    assert tensorflow_limit_mib(total / count, context) / 1024 <= allocator + 1e-9


class FakeCuda:
    """torch.cuda of a process that holds a context of 0.45 GiB and 0.05 GiB in torch's allocator."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, initialized: bool, by_process: float | None) -> None:
        self.nvml = FakeNvml(["NVIDIA A100"])
        self.nvml.install(monkeypatch)
        self.fraction: float | None = None
        self.by_process = by_process
        if initialized:
            self.start()
        self.initialized = initialized
        uuid = self.nvml.uuids[0].removeprefix("GPU-")
        cuda = {
            "is_initialized": lambda: self.initialized,
            "current_device": lambda: 0,
            "get_device_properties": lambda device: SimpleNamespace(uuid=uuid),
            "synchronize": lambda: None,
            "memory_reserved": lambda: int(0.05 * 2**30),
            "mem_get_info": lambda device: (int(14.5 * 2**30), int(15.5 * 2**30)),
            "set_per_process_memory_fraction": self.cap,
        }
        for name, answer in cuda.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        real = torch.ones
        monkeypatch.setattr(torch, "ones", lambda *shape, device: (self.start(), real(*shape))[1])

    def start(self) -> None:
        if not getattr(self, "initialized", False):
            self.initialized = True
            self.nvml.devices[0].used_gib += 0.5
            if self.by_process is not None:
                self.nvml.devices[0].processes[os.getpid()] = self.by_process

    def cap(self, fraction: float, device: int) -> None:
        self.fraction = fraction


@pytest.mark.parametrize(
    ("initialized", "by_process", "expected"),
    [
        (False, 0.5, 0.45),  # NVML tells of this process
        (True, 0.5, 0.45),
        (False, None, 0.45),  # by what is free before and after
        (False, 40.0, 0.45),  # this pid is another process's on the host
        (True, None, limits.UNMEASURED_CONTEXT_GIB),  # too late to measure
    ],
)
def test_the_context_is_measured(
    monkeypatch: pytest.MonkeyPatch, initialized: bool, by_process: float | None, expected: float
) -> None:
    FakeCuda(monkeypatch, initialized, by_process)
    assert measure_context_gib() == pytest.approx(expected, abs=1e-6)


def test_torch_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeCuda(monkeypatch, initialized=False, by_process=0.5)
    cap_torch(0.2)
    assert fake.fraction == pytest.approx(2.65 / 15.5)
    with pytest.raises(MemoryError, match="larger fraction"):
        cap_torch(0.02)


ALONE = """
import resource, sys, traceback
import numpy, torch
from raygpu.training.out_of_memory import is_out_of_memory
from raygpu.devices.limits import cap_data, lift_data
model = torch.nn.Linear(1000, 1000)
before = resource.getrlimit(resource.RLIMIT_DATA)
lift = cap_data(0.2)
held = torch.zeros(10 * 2**20)  # 40 MiB of 200
for allocate in (lambda: torch.zeros(2**28), lambda: numpy.ones(2**28), lambda: bytearray(2**30)):
    try:
        allocate()
    except BaseException as error:
        assert is_out_of_memory(error), repr(error)
        assert is_out_of_memory(traceback.format_exc()), traceback.format_exc()
        print(type(error).__name__)
model(torch.zeros(64, 1000)).sum().backward()  # what fits goes on
print("trained", model.weight.grad is not None)
lift_data(lift)
assert resource.getrlimit(resource.RLIMIT_DATA) == before
torch.zeros(2**27)  # 512 MiB
print("lifted")
"""


def test_a_training_runs_out_of_memory_alone() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:5] == ["RuntimeError", "MemoryError", "MemoryError", "trained True", "lifted"]


def test_a_tighter_limit_from_outside_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    current = [5 * 2**20, resource.RLIM_INFINITY]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(current))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: current.__setitem__(slice(None), pair))
    before = limits.cap_data(1.0)
    assert current == [5 * 2**20, resource.RLIM_INFINITY]
    limits.lift_data(before)
    assert current == [5 * 2**20, resource.RLIM_INFINITY]


ON_GPU = """
import torch
from raygpu.training.out_of_memory import is_out_of_memory
from raygpu.devices.limits import cap_torch, measure_context_gib
cap_torch(0.1)
context_gib = measure_context_gib()
assert 0.05 < context_gib < 2, context_gib
allocator_gib = 0.1 * torch.cuda.mem_get_info()[1] / 2**30 - context_gib
held = torch.empty(int(allocator_gib * 0.9 * 2**30), dtype=torch.uint8, device="cuda")
try:
    torch.empty(int(allocator_gib * 0.2 * 2**30), dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert is_out_of_memory(error)
    print("out of memory", allocator_gib)
del held
print(float(torch.ones(10, device="cuda").sum()))
"""


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU that torch can use")
def test_a_training_runs_out_of_its_share_of_a_real_card() -> None:
    done = subprocess.run([sys.executable, "-c", ON_GPU], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out of memory")
    assert done.stdout.endswith("10.0\n")
