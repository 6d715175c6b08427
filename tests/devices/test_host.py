from __future__ import annotations

import os

import pytest

from raygpu.devices import control_group, host


def test_this_machine() -> None:
    assert 1 <= host.num_cpus() <= len(os.sched_getaffinity(0))
    assert 0 < host.available_memory_gib() < 100_000
    assert host.node(0).num_gpus == 1, "one simulated device"


def test_a_container_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_group, "cpu_quota", lambda: 1.9)
    monkeypatch.setattr(control_group, "available_bytes", lambda: 150 * 2**20)
    assert host.num_cpus() == 1
    assert host.available_memory_gib() == pytest.approx(150 / 1024)
    monkeypatch.setattr(control_group, "cpu_quota", lambda: 0.5)
    assert host.num_cpus() == 1
