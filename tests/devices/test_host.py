from __future__ import annotations

import os
from pathlib import Path

import pytest

from raygpu.devices import host


def test_this_machine() -> None:
    assert 1 <= host.num_cpus() <= len(os.sched_getaffinity(0))
    assert 0 < host.available_memory_gib() < 100_000
    assert host.node(0).num_gpus == 1, "one simulated device"


def test_a_container_binds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text(str(300 * 2**20))
    (tmp_path / "memory.current").write_text(str(200 * 2**20))
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {50 * 2**20}\nactive_file 7\n")
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert host.num_cpus() == 1
    assert host.available_memory_gib() == pytest.approx(150 / 1024), "files in the page cache are free"


def test_an_unlimited_container_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = host.num_cpus()
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max")
    (tmp_path / "memory.current").write_text("1")
    monkeypatch.setattr(host, "CGROUP", tmp_path)
    assert host.num_cpus() >= before
    assert host.available_memory_gib() > 0.1
