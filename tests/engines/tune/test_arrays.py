"""The arrays of a Tune trial: a script's own files, where object storage does not take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.engines.tune.arrays import OwnProgram
from raygpu.storage import Storage, StorageError


def test_files_that_object_storage_does_not_take_stay_on_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(storage: Storage, source: Path) -> None:
        raise StorageError("storage: s3://bucket: no answer")

    monkeypatch.setattr(Storage, "upload", away)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "trial-1"
    (folder / "work").mkdir(parents=True)
    (folder / "model.bin").write_bytes(b"parameters")
    none: Any = None
    program = OwnProgram(none, none, none, none)
    program._copy = folder, Storage("s3://bucket/trials/t0000")
    program.array = SimpleArray()
    program.drop(["t0000"])
    (line,) = program.warnings
    assert "s3://bucket: no answer" in line
    (kept,) = tmp_path.glob("raygpu-*/kept-t0000-*")
    assert f"its files lie in {kept} on " in line
    assert (kept / "model.bin").read_bytes() == b"parameters"
    assert not folder.exists()


def test_files_of_an_earlier_start_are_not_among_those_of_a_new_one(tmp_path: Path) -> None:
    folder, storage = tmp_path / "local", Storage(str(tmp_path / "shared" / "t0000"))
    shared = tmp_path / "shared" / "t0000" / "files"
    shared.mkdir(parents=True)
    (shared / "old").write_text("of the earlier start")
    for name in ("files.before/1/old", "files/new"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(name)
    none: Any = None
    program = OwnProgram(none, none, none, none)
    program._copy = folder, storage
    program._deliver()
    assert [path.name for path in shared.iterdir()] == ["new"]
    assert (shared.parent / "files.before" / "1" / "old").is_file()


class SimpleArray:
    """An array of one trial."""

    def drop(self, trial_ids: list[str]) -> None: ...

    def close(self) -> None: ...
