"""The Ray of a job: what the job has, and ports of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.devices.slurm_allocation import Allocation
from raygpu.engines.slurm import ray_nodes
from raygpu.engines.slurm.ray_nodes import RayNodes, environment, own_address, start_flags


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


@pytest.mark.parametrize(
    ("address", "other", "is_route"),
    [("10.0.0.1", "10.0.0.2", False), ("127.0.1.1", "8.8.8.8", True), ("127.0.0.21", "127.0.0.22", False)],
)
def test_a_node_tells_others_no_address_of_its_loopback(
    address: str, other: str, is_route: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Debian's /etc/hosts has 127.0.1.1 for the machine's own name."""

    class Probe:
        def __init__(self, *kind: object) -> None:
            self.other = ""

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def connect(self, place: tuple[str, int]) -> None:
            self.other = place[0]

        def getsockname(self) -> tuple[str, int]:
            assert self.other == other
            return "10.0.0.7", 5

    monkeypatch.setattr(ray_nodes, "address_of", lambda node: address)
    monkeypatch.setattr(ray_nodes.socket, "socket", Probe)
    assert own_address("n1", other) == ("10.0.0.7" if is_route else address)


STARTED = "Ray runtime started.\n"
FAILED = "srun: error: n2: task 0: Exited with exit code 1\n"


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (STARTED, None),
        (f"{STARTED}no route to the head\n{FAILED}", f"{STARTED}no route to the head\n{FAILED}".strip()),
        (f"{STARTED}{STARTED}{STARTED}{FAILED}", None),  # a node that is lost later
        (f"{STARTED}srun: warning: a slow node\n", None),
    ],
)
def test_a_node_that_ends_before_all_have_started_is_a_fault(written: str, fault: str | None, tmp_path: Path) -> None:
    ray = RayNodes(["n1", "n2", "n3"], tmp_path, {})
    assert ray.start_fault is None
    ray.log.write_text(written)
    assert ray.start_fault == fault
