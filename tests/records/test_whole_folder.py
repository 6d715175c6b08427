"""A folder that is replaced in one step: whenever its process is killed, the old or the new content is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raygpu.records.whole_folder import WHOLE, WholeFolder
from raygpu.storage import Storage, _file_system
from tests.services.s3 import BUCKET, s3


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, s3() as variables:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield f"s3://{BUCKET}"
    _file_system.cache_clear()


@pytest.fixture(params=["file system", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> WholeFolder:
    if request.param == "s3":
        return WholeFolder(Storage.at(request.getfixturevalue("bucket")) / tmp_path.name / "kept")
    return WholeFolder(Storage(str(tmp_path / "kept")))


def content(folder: WholeFolder) -> dict[str, bytes]:
    assert folder.content is not None
    names = set(folder.content.files()) - {WHOLE}
    return {name: folder.content.read(name) for name in names}


def test_content_is_replaced_and_leaves_nothing_else(folder: WholeFolder) -> None:
    assert folder.content is None
    for text in (b"one", b"two"):
        folder.replace(lambda part, text=text: part.write("state", text))  # type: ignore[misc]
        assert content(folder) == {"state": text}
        assert folder.folder.parent.folders() == ["kept"]
        assert folder.folder.files() == ["state"]


def test_content_is_removed_with_one_that_was_not_moved_yet(folder: WholeFolder) -> None:
    folder.replace(lambda part: part.write("state", b"one"))
    folder._part.write("state", b"two")
    folder._part.write(WHOLE, b"")
    folder.remove()
    assert folder.content is None
    assert folder.folder.parent.folders() == []


def test_a_writing_that_ends_early_leaves_the_content_before(folder: WholeFolder) -> None:
    folder.replace(lambda part: part.write("state", b"one"))

    def write(part: Storage) -> None:
        part.write("other", b"tw")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.replace(write)
    assert content(folder) == {"state": b"one"}
    folder.replace(lambda part: part.write("state", b"three"))
    assert content(folder) == {"state": b"three"}
    assert folder.folder.parent.folders() == ["kept"]


def test_a_removal_that_ends_early_costs_no_content(folder: WholeFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(part: Storage) -> None:
        if part.name == ".kept" and part.has("state"):
            part.discard("state")
            raise KeyboardInterrupt
        remove(part)

    def write(part: Storage) -> None:
        raise KeyboardInterrupt

    remove = Storage.remove
    with monkeypatch.context() as patched, suppress(KeyboardInterrupt):  # a rename on disk removes nothing
        patched.setattr(Storage, "remove", cut)
        folder.replace(lambda part: part.write("state", b"one"))
    assert content(folder) == {"state": b"one"}
    with pytest.raises(KeyboardInterrupt):
        folder.replace(write)
    assert content(folder) == {"state": b"one"}


@pytest.mark.parametrize("is_removed", [False, True])
def test_whole_content_that_was_not_moved_counts(folder: WholeFolder, is_removed: bool) -> None:
    if not is_removed:
        folder.replace(lambda part: part.write("state", b"one"))
    part = folder.folder.parent / ".kept"
    part.write("state", b"two")
    part.write(WHOLE, b"")
    assert content(folder) == {"state": b"two"}

    def write(_: Storage) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folder.replace(write)
    assert content(folder) == {"state": b"two"}, "not the one before it"
