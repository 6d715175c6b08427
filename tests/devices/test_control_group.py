"""The tightest limit binds: of the group itself or of one above it, in cgroup v2 and v1, in a container or outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.devices import control_group
from raygpu.devices.control_group import available_bytes, cpu_quota, limit_bytes

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(control_group, "ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(control_group, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path / "cgroup"


def belongs(root: Path, *lines: str) -> None:
    (root.parent / "membership").write_text("".join(f"{line}\n" for line in lines))


def v2(folder: Path, cpus: str = "max 100000", limit: str = "max", used: int = 0, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(f"{cpus}\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(str(used))
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 7\n")


def v1(root: Path, path: str, quota: int, limit: int, used: int = 0, cached: int = 0) -> None:
    cpu, memory = root / "cpu" / path, root / "memory" / path
    for folder in (cpu, memory):
        folder.mkdir(parents=True, exist_ok=True)
    (cpu / "cpu.cfs_quota_us").write_text(str(quota))
    (cpu / "cpu.cfs_period_us").write_text("100000")
    (memory / "memory.limit_in_bytes").write_text(str(limit))
    (memory / "memory.usage_in_bytes").write_text(str(used))
    (memory / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {cached}\n")


def test_a_container_of_v2(root: Path) -> None:
    """Its group is the root."""
    belongs(root, "0::/")
    v2(root, "150000 100000", str(300 * MIB), used=200 * MIB, cached=50 * MIB)
    assert cpu_quota() == 1.5
    assert available_bytes() == 150 * MIB
    assert limit_bytes() == 300 * MIB


def test_a_slice_above_the_group_binds(root: Path) -> None:
    belongs(root, "0::/user.slice/session.scope")
    root.mkdir()  # the root group of a machine has no limits
    v2(root / "user.slice", "200000 100000", str(100 * MIB), used=90 * MIB)
    v2(root / "user.slice" / "session.scope", "400000 100000", str(80 * MIB), used=10 * MIB)
    assert cpu_quota() == 2.0
    assert available_bytes() == 10 * MIB
    assert limit_bytes() == 80 * MIB


def test_a_container_of_v1(root: Path) -> None:
    """Its path may be the host's, which is not there."""
    belongs(root, "5:memory:/docker/1234", "4:cpu,cpuacct:/docker/1234", "1:name=systemd:/docker/1234")
    (root / "cpu,cpuacct").mkdir(parents=True)
    (root / "cpu").symlink_to("cpu,cpuacct")
    v1(root, "", quota=50000, limit=300 * MIB, used=200 * MIB, cached=50 * MIB)
    assert cpu_quota() == 0.5
    assert available_bytes() == 150 * MIB
    assert limit_bytes() == 300 * MIB


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_without_limits(root: Path, version: str) -> None:
    if version == "v1":
        belongs(root, "5:memory:/", "4:cpu:/")
        v1(root, "", quota=-1, limit=9223372036854771712)
        assert (available_bytes() or 0) > 2**60
    else:
        belongs(root, "0::/")
        v2(root)
        assert available_bytes() is None
    assert cpu_quota() is limit_bytes() is None


def test_a_system_without_control_groups(root: Path) -> None:
    assert cpu_quota() is available_bytes() is limit_bytes() is None
