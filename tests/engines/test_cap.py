"""A trial's memory limit, on the simulated device."""

from __future__ import annotations

import resource

import pytest

from raygpu.engines.cap import Cap
from raygpu.packing import Share


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
