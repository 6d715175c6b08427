"""The folder of what is kept for a user between runs."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest

from raygpu.errors import BadInput
from raygpu.records.array_store import ArrayStore
from raygpu.records.cache_folder import cache_folder
from raygpu.records.profile_store import ProfileStore
from raygpu.records.slurm_job import registry


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert cache_folder() == Path("/cache/raygpu")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/raygpu")
    assert ProfileStore.at(None).folder == cache_folder() / "profiles"
    assert ArrayStore.at(None).folder == cache_folder() / "arrays"
    assert registry() == cache_folder() / "slurm"


def test_a_user_without_a_home_directory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container with a user id of its own, or a batch system with an empty environment."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="set HOME or XDG_CACHE_HOME"):
        ProfileStore.at(None)
