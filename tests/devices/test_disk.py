"""A full disk is waited for."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from raygpu.devices import disk


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets the free bytes of every disk, of 100 GiB each."""
    now = [10 * 2**30]
    monkeypatch.setattr(
        disk, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=now[0], total=100 * 2**30))
    )
    monkeypatch.setattr(disk, "POLL_S", 0.0)

    def set_to(count: int) -> None:
        now[0] = count

    return set_to


def test_a_disk_is_full_before_its_last_byte(free: Callable[[int], None]) -> None:
    assert disk.full([Path("/a"), Path("/b")]) is None
    free(2**20)
    assert disk.full([Path("/a"), Path("/b")]) == Path("/a")
    assert disk.full([]) is None


def test_a_small_disk_is_full_at_a_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(free=10 * 2**20, total=20 * 2**20)
    monkeypatch.setattr(disk, "shutil", SimpleNamespace(disk_usage=lambda path: usage))
    assert disk.full([tmp_path]) is None
    usage.free = 0
    assert disk.full([tmp_path]) == tmp_path


def test_a_folder_that_is_not_there_is_not_full(tmp_path: Path) -> None:
    assert disk.full([tmp_path / "later"]) is None


def test_what_a_full_disk_failed_is_called_again(free: Callable[[int], None]) -> None:
    calls = []

    def write() -> str:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        if len(calls) == 2:
            raise RuntimeError("[enforce fail] PytorchStreamWriter failed writing file data/0: No space left on device")
        return "written"

    assert disk.patiently([Path("/a")], write) == "written"
    assert calls == [0, 1, 2]


def test_other_errors_are_raised(free: Callable[[int], None]) -> None:
    for error in (
        OSError(errno.EACCES, "Permission denied"),
        RuntimeError("PytorchStreamWriter failed"),
        KeyError("x"),
    ):

        def fail(error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            disk.patiently([Path("/a")], fail)
