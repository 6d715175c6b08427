"""The store of a sweep that opens while the first trials start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.tracking.opening import StoreOpening
from raygpu.tracking.runs import Refused, RunTree


def config() -> Any:
    return SimpleNamespace(tracking=SimpleNamespace(uri="sqlite:///unused.db", experiment="digits"))


def test_a_store_that_cannot_be_opened_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str, experiment: str) -> RunTree:
        raise TrackingError(f"tracking: {experiment} in {uri} was deleted")

    monkeypatch.setattr(RunTree, "open", fail)
    opening = StoreOpening(config())
    assert opening.fault is None
    with pytest.raises(Refused, match=r"digits in sqlite:///unused.db was deleted"):
        opening.tree()
    assert str(opening.fault) == "tracking: digits in sqlite:///unused.db was deleted"


def test_an_open_store_has_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = object()
    monkeypatch.setattr(RunTree, "open", lambda uri, experiment: tree)
    opening = StoreOpening(config())
    assert opening.tree() is tree
    assert opening.fault is None


def test_a_store_that_was_open_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(uri: str, experiment: str) -> RunTree:
        raise TrackingError("tracking.uri: Slurm job 12 works on it until its end")

    monkeypatch.setattr(RunTree, "open", lambda uri, experiment: object())
    opening = StoreOpening(config())
    opening.tree()
    monkeypatch.setattr(RunTree, "open", held)
    with pytest.raises(TrackingError) as fault:
        opening.tree()
    assert not isinstance(fault.value, Refused)
    assert opening.fault is None  # the sweep goes on
