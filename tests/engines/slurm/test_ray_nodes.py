"""The Ray of a job: what the job has, and ports of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.devices.slurm_allocation import Allocation
from raygpu.engines.slurm.ray_nodes import environment, start_flags


def value(flags: list[str], name: str) -> str:
    return flags[flags.index(name) + 1]


def test_a_node_offers_what_the_job_has_of_it() -> None:
    flags = start_flags(Allocation(num_cpus=8, num_gpus=4, memory_gib=10.0), "10.0.0.1", "/tmp/ray", (5000, 5001))
    assert value(flags, "--num-cpus") == "8"
    assert value(flags, "--num-gpus") == "4"
    assert int(value(flags, "--memory")) + int(value(flags, "--object-store-memory")) <= 10 * 2**30
    assert value(flags, "--node-ip-address") == "10.0.0.1"
    assert value(flags, "--dashboard-host") == "127.0.0.1"


def test_no_port_is_one_that_another_job_may_have() -> None:
    head = start_flags(Allocation(1), "10.0.0.1", "/tmp/ray", (5000, 5001))
    other = start_flags(Allocation(1), "10.0.0.1:5000", "/tmp/ray")
    for flags in (head, other):
        ports = [flag for flag in flags if flag.endswith("-port")]
        assert {value(flags, flag) for flag in ports if value(flags, flag) not in ("5000", "5001")} == {"0"}
    assert (value(head, "--port"), value(head, "--ray-client-server-port")) == ("5000", "5001")
    assert value(other, "--address") == "10.0.0.1:5000"
    assert "--head" not in other


def test_unknown_numbers_are_not_all_of_the_node() -> None:
    flags = start_flags(Allocation(), "h:1", "/tmp/ray")
    assert value(flags, "--num-cpus") == "1"
    assert value(flags, "--num-gpus") == "0"
    assert "--memory" not in flags


def test_telemetry_is_off_and_a_token_is_wanted() -> None:
    found = environment({"RAY_AUTH_TOKEN": "mine", "RAY_AUTH_MODE": "disabled"})
    assert found["RAY_AUTH_TOKEN"] == "mine"
    assert found["RAY_AUTH_MODE"] == "token"
    assert found["RAY_USAGE_STATS_ENABLED"] == "0"


def test_the_token_is_that_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    token = environment({})["RAY_AUTH_TOKEN"]
    file = tmp_path / ".ray" / "auth_token"
    assert file.read_text() == token
    assert file.stat().st_mode & 0o077 == 0
    assert environment({})["RAY_AUTH_TOKEN"] == token
