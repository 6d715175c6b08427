"""Measured widths and compiled steps are kept for this user alone, whole, and not without end."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

import pytest

from raygpu.records import array_store
from raygpu.records.array_store import ArrayStore


@pytest.fixture
def store(tmp_path: Path) -> ArrayStore:
    return ArrayStore(tmp_path / "arrays")


def keep(store: ArrayStore, name: str, content: bytes = b"machine code") -> Path:
    with store.making(name) as part:
        assert part is not None
        part.write_bytes(content)
    return store.folder / f"{name}.pt2"


def test_the_folder_lies_beside_the_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ArrayStore.at(None).folder == tmp_path / "raygpu/arrays"
    assert ArrayStore.at(str(tmp_path / "own")).folder == tmp_path / "own/arrays"


def test_what_is_kept_is_found_again_by_its_key(store: ArrayStore) -> None:
    store.keep_widths("a", {4: 0.5, 8: 0.75}, {4: 100, 8: 150})
    found = store.widths("a")
    assert found is not None
    assert (found.step_s, found.num_bytes) == ({4: 0.5, 8: 0.75}, {4: 100, 8: 150})
    assert len(found.measured_on) == len("2026-11-25")
    keep(store, "a-8")
    program = store.program("a-8")
    assert program is not None
    assert program.path.read_bytes() == b"machine code"
    assert store.programs("a-") == ["a-8"]
    assert store.widths("b") is None
    assert store.program("b-8") is None


def test_everything_is_this_users_alone(store: ArrayStore) -> None:
    store.keep_widths("a", {4: 0.5}, {4: 100})
    path = keep(store, "a-4")
    assert store.folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("spoil", ["cut", "changed", "no digest", "link", "rights"])
def test_a_program_that_is_not_what_was_kept_is_deleted(store: ArrayStore, spoil: str) -> None:
    path = keep(store, "a-4")
    match spoil:
        case "cut":
            path.write_bytes(b"machine")
        case "changed":
            path.write_bytes(b"machine c0de")
        case "no digest":
            path.with_suffix(".sha256").unlink()
        case "link":
            path.rename(store.folder / "elsewhere")
            path.symlink_to(store.folder / "elsewhere")
        case _:
            path.chmod(0o666)
    assert store.program("a-4") is None
    assert not path.exists()


def test_nothing_of_another_user_is_taken(store: ArrayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(store, "a-4")
    store.keep_widths("a", {4: 0.5}, {4: 100})
    monkeypatch.setattr(os, "geteuid", lambda: store.folder.stat().st_uid + 1)
    assert not store.is_private()
    assert store.program("a-4") is None
    assert store.widths("a") is None
    assert store.programs("a-") == []
    with pytest.raises(PermissionError), store.making("b-4"):
        pass


def test_a_folder_that_others_can_enter_is_not_used(store: ArrayStore) -> None:
    keep(store, "a-4")
    store.folder.chmod(0o755)
    assert store.program("a-4") is None
    store.keep_widths("a", {4: 0.5}, {4: 100})
    store.folder.chmod(0o700)
    assert store.widths("a") is None, "nothing was written either"
    assert store.program("a-4") is not None, "and nothing deleted"


@pytest.mark.parametrize("text", ["", "[]", '{"step_s": {"4": -1}, "num_bytes": {}, "measured_on": "x"}', "{}"])
def test_widths_that_cannot_be_read_are_measured_again(store: ArrayStore, text: str) -> None:
    store.keep_widths("a", {4: 0.5}, {4: 100})
    (store.folder / "a.widths.json").write_text(text)
    assert store.widths("a") is None


def test_one_process_at_a_time_makes_a_program(store: ArrayStore) -> None:
    with store.making("a-4") as first:
        assert first is not None
        with store.making("a-4") as second:
            assert second is None
        first.write_bytes(b"first")
    program = store.program("a-4")
    assert program is not None
    assert program.path.read_bytes() == b"first"


def test_a_program_that_was_made_meanwhile_is_not_made_again(
    store: ArrayStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.flock

    def lock_once_its_owner_ends(file: IO[str], operation: int) -> None:
        (store.folder / "a-4.lock").unlink()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock_once_its_owner_ends)
    with store.making("a-4") as part:
        assert part is None


def test_a_program_that_fails_half_way_is_not_kept(store: ArrayStore) -> None:
    def fail() -> None:
        with store.making("a-4") as part:
            assert part is not None
            part.write_bytes(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.program("a-4") is None
    assert [*store.folder.iterdir()] == []


def test_programs_that_were_not_used_for_longest_go_first(store: ArrayStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_store, "MOST_BYTES", 250)
    for age, name in enumerate(["b", "a"]):
        path = keep(store, name, b"x" * 100)
        os.utime(path, (1000 + age, 1000 + age))
    store.program("b")  # it is used
    keep(store, "c", b"x" * 100)
    assert store.programs("") == ["b", "c"]


def test_what_could_not_be_compiled_is_tried_again_after_a_day(store: ArrayStore) -> None:
    store.is_private()
    store.keep_fault("a-4", "no compiler")
    assert store.fault("a-4") == "no compiler"
    old = store.folder / "a-4.fault"
    os.utime(old, (1000, 1000))
    assert store.fault("a-4") is None
    store.keep_fault("a-4", "no compiler")
    keep(store, "a-4")
    assert store.fault("a-4") is None, "now there is a program"
