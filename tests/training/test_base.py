"""The environment that a training's process is given."""

from __future__ import annotations

import pytest

from raygpu.training.base import surroundings


def test_threads_are_bounded() -> None:
    assert surroundings(3)["OMP_NUM_THREADS"] == "3"


def test_waiting_threads_yield_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "OMP_WAIT_POLICY" not in surroundings(2)
    assert surroundings(2, yielding=True)["OMP_WAIT_POLICY"] == "passive"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert surroundings(2, yielding=True)["OMP_WAIT_POLICY"] == "active"
