"""A trial's memory limit, on the simulated device."""

from __future__ import annotations

import resource

import pytest

from raygpu.engines.tune.memory_limit import Cap
from raygpu.planning.gpu_shares import Share


def soft() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


def test_a_limit_that_is_set_twice_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.get_gpu_ids", lambda: ["-1"])
    before, cap = soft(), Cap("function", 400.0)
    cap.set(Share(4))
    first = soft()
    cap.set(Share(2))
    assert before != first != soft()
    cap.lift()
    assert soft() == before


def test_under_mps_the_server_holds_torch_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.get_gpu_ids", lambda: ["-1"])
    monkeypatch.setattr(Cap, "_torch_on_gpu", lambda cap: True)
    capped: list[float] = []
    monkeypatch.setattr("raygpu.devices.limits.cap_torch", capped.append)
    Cap("torch", 40.0).set(Share(4))
    assert capped == [0.25]
    monkeypatch.setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=10240M")
    Cap("torch", 40.0).set(Share(4))
    assert capped == [0.25], "the total that CUDA tells may be the limit already"
