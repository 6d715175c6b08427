"""The cluster of this machine is found by Ray's file, if it answers and is the user's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from raygpu.engines.cluster.running_cluster import found_address, given_address
from tests.tracking.services import free_port


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


def test_the_address_of_a_cluster_that_answers(file: Path, listening: str) -> None:
    assert found_address() is None
    file.write_text(f"{listening}\n")
    assert found_address() == listening


@pytest.mark.parametrize("text", ["", "nonsense", "127.0.0.1:port", "127.0.0.1:99999999"])
def test_what_does_not_answer_is_none(file: Path, text: str) -> None:
    file.write_text(text)
    assert found_address() is None
    file.write_text(f"127.0.0.1:{free_port()}")
    assert found_address() is None


def test_another_user_s_cluster_is_joined_on_request_alone(
    file: Path, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(listening)
    os.chmod(file, 0o644)
    stat = file.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: os.stat_result([*stat[:4], 4711, *stat[5:]]))
    assert found_address() is None
    assert found_address(of_any_user=True) == listening


def test_the_given_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert given_address() is None
    monkeypatch.setenv("RAY_ADDRESS", "")
    assert given_address() is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert given_address() == "10.0.0.1:6379"


def test_the_file_is_where_ray_writes_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray._common.utils import get_ray_address_file

    from raygpu.engines.cluster.running_cluster import FILE

    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert Path(get_ray_address_file(None)) == tmp_path / FILE
