"""The address of a dashboard that starts beside the run."""

from __future__ import annotations

from queue import Queue
from threading import Event

import pytest

from raygpu.engines.cluster import dashboard, ray_private_api
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.dashboard import Dashboard, url


class Starting:
    """In place of Ray's: a dashboard that has an address once it is told so."""

    def __init__(self) -> None:
        self.has_address, self.is_lost, self.silent = Event(), False, 0

    def look(self) -> str | None:
        self.silent -= 1
        if self.silent >= 0:
            raise RuntimeError("no head answers")
        return "127.0.0.1:8265" if self.has_address.is_set() else None


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starting:
    found = Starting()
    monkeypatch.setattr(ray_private_api, "DashboardAddress", lambda: found)
    return found


def test_an_address_that_is_known_is_handed_on_at_once() -> None:
    taken: list[str | None] = []
    for given in ("127.0.0.1:8265", "http://127.0.0.1:8265", None, ""):
        Dashboard(given).then(taken.append)
    assert taken == ["http://127.0.0.1:8265", "http://127.0.0.1:8265", None, None]
    assert Dashboard("host:1").wait() == url("host:1") == "http://host:1"


def test_a_cluster_tells_it_once_it_has_started(starting: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    said: Queue[str] = Queue()
    cluster = Cluster([], [], Dashboard.starting(), local=True)
    cluster.tell_address(said.put)
    assert said.empty()
    starting.has_address.set()
    assert cluster.dashboard.wait() == "http://127.0.0.1:8265"
    assert said.get(timeout=30) == "Ray dashboard: http://127.0.0.1:8265"
    cluster.dashboard.close()


def test_a_head_that_is_slow_to_answer_is_asked_again(starting: Starting) -> None:
    starting.silent = 2
    starting.has_address.set()
    assert Dashboard.starting().wait() == "http://127.0.0.1:8265"


@pytest.mark.parametrize("never_starts", [False, True])
def test_a_dashboard_that_does_not_start_is_told(
    starting: Starting, monkeypatch: pytest.MonkeyPatch, never_starts: bool
) -> None:
    starting.is_lost = not never_starts
    monkeypatch.setattr(dashboard, "START_S", 0.3)
    said: Queue[str] = Queue()
    cluster = Cluster([], [], Dashboard.starting(), local=True)
    cluster.tell_address(said.put)
    assert cluster.dashboard.wait() is None
    assert said.get(timeout=30) == "Ray dashboard: not running (it needs: pip install ray[default])"


def test_nothing_is_said_of_it_after_the_end(starting: Starting) -> None:
    said: list[object] = []
    ends = Dashboard.starting()
    ends.then(said.append)
    ends.close()
    assert ends.wait() is None
    assert said == []
