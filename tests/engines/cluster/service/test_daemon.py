"""The service's side of the conversation, with a Ray that is not there."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.cluster import orphan_processes
from raygpu.engines.cluster.service import client, connection, daemon, folder
from raygpu.engines.cluster.service.client import Lease, NotUsed, asked, lease
from raygpu.engines.cluster.service.daemon import ServiceDaemon
from raygpu.engines.cluster.service.fingerprint import Fingerprint
from raygpu.engines.cluster.service.folder import ServiceFolder
from raygpu.engines.cluster.service.gpu_leases import GpuRequest
from raygpu.records.whole_files import write_private

RAY = {"gcs_address": "127.0.0.1:1", "devices": [["node", "-1"]], "dashboard": None, "logs": "/nowhere"}


class Running:
    """A daemon in a thread."""

    def __init__(self, idle_s: float) -> None:
        self.folder = ServiceFolder()
        self.lock = self.folder.locked()
        assert self.lock is not None
        cluster: Any = SimpleNamespace(devices=[SimpleNamespace(name="one simulated GPU")])
        pool: Any = SimpleNamespace(size=2, count=lambda: (2, 0), fill=lambda: 2)
        self.lines: list[str] = []
        fingerprint = Fingerprint.here([], apart=True)
        self.daemon = ServiceDaemon(self.folder, cluster, fingerprint, pool, RAY, idle_s, self.lines.append)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        while self.folder.address() is None:
            self.thread.join(0.01)

    def run(self) -> None:
        self.daemon.run()
        assert self.lock is not None
        os.close(self.lock)

    def end(self) -> None:
        self.daemon.ended = True
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(daemon, "TICK_S", 0.05)
    monkeypatch.setattr(daemon, "StandbyProcess", lambda of: SimpleNamespace(is_ready=False, has_ended=False, end=int))
    monkeypatch.setattr(daemon, "head_answers", lambda: True)
    monkeypatch.setattr(orphan_processes, "end_of", lambda marks: None)


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running(idle_s=60)
    yield made
    made.end()


def take(what: str, told: list[str] | None = None, **request: Any) -> Lease:
    lines = [] if told is None else told
    found = lease(ServiceFolder(), GpuRequest(what, **request), [], "mark", lines.append, apart=True)
    assert found is not None
    return found


def test_its_files_are_the_user_s_alone(running: Running) -> None:
    assert stat.S_IMODE(running.folder.path.stat().st_mode) == 0o700
    for name in (folder.ADDRESS, folder.SOCKET):
        assert stat.S_IMODE((running.folder.path / name).stat().st_mode) & 0o077 == 0


def test_parts_are_given_and_come_back_with_the_connection(running: Running) -> None:
    first = take("a", most=Fraction(1, 2))
    second = take("b")
    assert (first.part, second.part) == (Fraction(1, 2), Fraction(1, 2))
    told: list[str] = []
    third: list[Lease] = []
    waiting = threading.Thread(target=lambda: third.append(take("c", told)))
    waiting.start()
    while not running.daemon.leases.waiting:
        waiting.join(0.01)
    first.close()
    waiting.join(60)
    assert third[0].part == Fraction(1, 2)
    assert told == ["service: 0 of 1 GPU free; a 0.5, b 0.5; c waits for its part"]
    third[0].close()
    second.close()
    while running.daemon.leases.taken:
        waiting.join(0.01)


def test_it_ends_after_those_that_use_it_and_takes_no_more() -> None:
    running = Running(idle_s=60)
    used = take("a")
    state = asked(ServiceFolder(), {"ask": "end", "now": False})
    assert state is not None
    assert state["ending"]
    with pytest.raises(NotUsed, match="it ends after the commands that use it"):
        take("b")
    assert running.thread.is_alive()
    used.close()
    running.thread.join(60)
    assert not running.thread.is_alive()
    assert ServiceFolder().address() is None


def test_it_ends_by_itself_when_nobody_uses_it() -> None:
    running = Running(idle_s=60)
    used = take("a")
    running.daemon._idle_s = 0.0
    running.thread.join(0.3)
    assert running.thread.is_alive()
    used.close()
    running.thread.join(60)
    assert not running.thread.is_alive()
    assert "ends" in running.lines[-1]


def test_a_wrong_message_closes_its_own_connection_alone(running: Running) -> None:
    for message in (b"no json\n", b"[]\n", b'{"ask": "?"}\n', b'{"ask": "use"}\n', b"\n"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.folder.socket))
            connection.sendall(message)
            connection.settimeout(10)
            assert connection.recv(10) == b""
    assert asked(ServiceFolder(), {"ask": "status"}) is not None


def test_another_user_s_process_is_not_heard(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "peer", lambda connection: (1, os.getuid() + 1))
    with pytest.raises(NotUsed, match="user"):
        asked(ServiceFolder(), {"ask": "status"})


def test_a_dead_service_is_cleaned_up(running: Running) -> None:
    kept = (running.folder.path / folder.ADDRESS).read_text()
    running.end()
    write_private(running.folder.path / folder.ADDRESS, kept.encode())
    left = running.folder.path / "command-1-x"
    left.write_text("")
    assert lease(ServiceFolder(), GpuRequest("a"), [], "mark", print, apart=True) is None
    assert not left.exists()
    assert ServiceFolder().address() is None


def test_one_that_hangs_is_left_alone(running: Running) -> None:
    """Its lock is held, so its files stay, and the command starts its own Ray."""
    running.folder.socket.unlink()
    with pytest.raises(NotUsed, match="does not answer"):
        take("a")
    assert running.folder.address() is not None


def test_other_terms_are_told(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    here = replace(Fingerprint.here([], apart=True), packages="other")
    monkeypatch.setattr(client.Fingerprint, "here", classmethod(lambda *_, **__: here))
    with pytest.raises(NotUsed, match="packages"):
        take("a")
    assert not running.daemon.leases.taken


def test_a_file_that_others_can_read_is_no_address(running: Running) -> None:
    (running.folder.path / folder.ADDRESS).chmod(0o644)
    assert ServiceFolder().address() is None
    (running.folder.path / folder.ADDRESS).chmod(0o600)


def test_a_second_one_does_not_get_the_lock(running: Running) -> None:
    assert ServiceFolder().locked() is None


def test_a_waiting_process_that_fails_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a library of CUDA's is missing, each of them after seconds of imports."""
    made: list[SimpleNamespace] = []

    def process(of: ServiceFolder) -> SimpleNamespace:
        made.append(SimpleNamespace(is_ready=len(made) == 2, has_ended=False, end=int))
        return made[-1]

    monkeypatch.setattr(daemon, "StandbyProcess", process)
    running = Running(idle_s=60)
    running.end()
    made.clear()
    running.daemon._standby = None
    for _ in range(20):
        running.daemon._keep_standby()  # starts one
        running.daemon._keep_standby()  # one that is ready by now ends the sequence
        made[-1].has_ended = True
    assert len(made) == 2 + daemon.MOST_FAULTS
    assert [line for line in running.lines if "processes in sequence" in line] == [
        "5 processes in sequence ended before they waited for a command: none waits any more"
    ]
