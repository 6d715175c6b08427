"""Ray ends beside what the process does meanwhile, once, and with little to collect."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence

import pytest

from raygpu.engines.cluster import cluster
from raygpu.engines.cluster.cluster import Cluster
from raygpu.engines.cluster.dashboard import Dashboard


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], threading.Event]:
    """The threads that have ended Ray, and an event that lets them."""
    names: list[str] = []
    allowed = threading.Event()

    def end(extra: Sequence[object]) -> None:
        allowed.wait(60)
        names.append(threading.current_thread().name)

    monkeypatch.setattr(cluster, "end_local", end)
    monkeypatch.setattr(cluster, "head_answers", lambda: True)
    return names, allowed


def test_ray_ends_in_a_thread_and_close_waits_for_it(ends: tuple[list[str], threading.Event]) -> None:
    names, allowed = ends
    closed = Cluster([], [], Dashboard(), local=True)
    closed.begin_close()
    assert names == []
    allowed.set()
    closed.close()
    closed.close()
    assert names == ["ray-end_0"]


def test_close_alone_ends_ray_at_once(ends: tuple[list[str], threading.Event]) -> None:
    names, allowed = ends
    allowed.set()
    Cluster([], [], Dashboard(), local=True).close()
    assert names == [threading.current_thread().name]


def test_a_fault_of_the_end_reaches_close(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(extra: Sequence[object]) -> None:
        raise RuntimeError("Ray would not end")

    monkeypatch.setattr(cluster, "end_local", fail)
    monkeypatch.setattr(cluster, "head_answers", lambda: True)
    closed = Cluster([], [], Dashboard(), local=True)
    closed.begin_close()
    with pytest.raises(RuntimeError, match="would not end"):
        closed.close()


def test_objects_that_are_there_before_the_trials_are_not_collected_again(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_at_the_end = []
    monkeypatch.setattr(cluster.ray, "shutdown", lambda: frozen_at_the_end.append(gc.get_freeze_count()))
    try:
        cluster.spare_from_collections()
        assert len(gc.get_objects()) < gc.get_freeze_count()
        cluster.shutdown()
    finally:
        gc.unfreeze()
    assert frozen_at_the_end[0] > 10_000
    assert gc.get_freeze_count() == 0
