"""Whose GPUs are shown: this machine's, or those of a cluster's nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import BadInput
from raygpu.workflow import gpu_nodes
from raygpu.workflow.gpu_nodes import NodeStatus, nodes, told_once
from raygpu.workflow.gpu_status import GpuProcess, MachineStatus
from raygpu.workflow.gpu_table import view
from tests.fakes.nvml import FakeNvml
from tests.tracking.services import free_port

MINE = GpuProcess(5, None, "me", "python", None)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    FakeNvml(["NVIDIA L40S"]).install(monkeypatch)
    (tmp_path / "ray").mkdir()


@contextmanager
def listening(file: Path) -> Iterator[str]:
    """Something that answers at the address in Ray's file, as a web server does, and is no cluster."""
    import threading
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file.write_text(address := f"127.0.0.1:{server.server_port}")
        yield address
        server.shutdown()


def shown(address: str | None) -> tuple[list[str], list[str]]:
    """The names of the nodes, and what was said."""
    said: list[str] = []
    with nodes(address, said.append) as ask:
        return [node.name for node in ask(1.0)], said


@pytest.mark.parametrize("environment", [None, "", "http://127.0.0.1:8265", "local"])
def test_this_machine_where_no_cluster_runs(environment: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """RAY_ADDRESS may have the dashboard's address, for `ray job submit`."""
    if environment is not None:
        monkeypatch.setenv("RAY_ADDRESS", environment)
    assert shown(None) == ([socket.gethostname()], [])


def test_a_found_cluster_that_cannot_be_joined_hides_nothing(tmp_path: Path) -> None:
    with listening(tmp_path / "ray" / "ray_current_cluster"):
        names, (line,) = shown(None)
        assert names == [socket.gethostname()]
        assert line.startswith("this machine alone: ")
        assert line.endswith("; --address local leaves that out")
        assert shown("local") == ([socket.gethostname()], [])


@pytest.mark.parametrize("by", ["--address", "RAY_ADDRESS"])
def test_a_wanted_cluster_that_cannot_be_joined_is_bad_input(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"127.0.0.1:{free_port()}"
    if by == "RAY_ADDRESS":
        monkeypatch.setenv(by, address)
    with pytest.raises(BadInput, match=f"{by}: nothing answers at '{address}'"):
        shown(address if by == "--address" else None)


def test_auto_takes_a_cluster_that_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own auto takes a Ray on loopback for one, and waits for it without end."""
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    for address in ("auto", None):
        with pytest.raises(BadInput, match="no cluster of `ray start` answers on this machine"):
            shown(address)


def node(name: str, machine: str, *elsewhere: GpuProcess, **more: Any) -> NodeStatus:
    return NodeStatus(name, "10.0.0.1", name * 8, MachineStatus((), elsewhere, machine=machine), **more)


def test_nodes_of_one_machine_do_not_show_a_training_twice() -> None:
    found = told_once([node("a", "here", MINE), node("b", "here", MINE), node("c", "there", MINE)])
    assert [len(each.status.elsewhere) for each in found if each.status is not None] == [1, 0, 1]


def test_each_node_has_its_name_and_why_it_does_not_answer() -> None:
    lost = NodeStatus("gpu-2", "10.0.0.2", "ffff", None, "no answer yet after 3 s", pending=True)
    texts = [str(line) for line in view([node("gpu-1", "here"), lost], 80).renderables]
    assert texts == [
        "node gpu-1 (10.0.0.1)",
        "no NVIDIA GPU here",
        "node gpu-2 (10.0.0.2): no answer yet after 3 s",
    ]
    alike = [node("gpu-1", "here"), NodeStatus("gpu-1", "10.0.0.1", "abcdefghij", None, "has left the cluster")]
    assert "node gpu-1 (10.0.0.1, abcdefgh): has left the cluster" in [
        str(line) for line in view(alike, 80).renderables
    ]


def test_the_cluster_s_nodes_are_shown(ray_address: str) -> None:
    with nodes(ray_address, print) as ask:
        (found,) = ask(60.0)
    assert found.address is not None
    assert found.fault is None
    assert found.status is not None
    assert found.status.machine == gpu_nodes.status_here(None).machine
