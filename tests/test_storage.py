"""Folders that all nodes reach, in a file system and in object storage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from raygpu.errors import BadInput
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
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "s3":
        return Storage.at(request.getfixturevalue("bucket")) / tmp_path.name
    return Storage.at(str(tmp_path / "shared"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with files and folders."""
    folder = tmp_path / "tree"
    (folder / "inner" / "deep").mkdir(parents=True)
    (folder / "top.txt").write_text("top")
    (folder / "inner" / "deep" / "low.bin").write_bytes(bytes(range(256)))
    return folder


def test_files(storage: Storage) -> None:
    assert not storage.is_dir()
    assert not storage.has("a.txt")
    with pytest.raises(FileNotFoundError):
        storage.read("a.txt")
    storage.write("a.txt", b"one")
    storage.write("a.txt", b"two")
    assert storage.is_dir()
    assert storage.has("a.txt")
    assert storage.read("a.txt") == b"two"
    storage.discard("a.txt")
    assert not storage.has("a.txt")


def test_folders_go_there_and_come_back(storage: Storage, tree: Path, tmp_path: Path) -> None:
    storage.upload(tree)
    assert storage.folders() == ["inner"]
    assert (storage / "inner").folders() == ["deep"]
    assert (storage / "inner").name == "inner"
    assert (storage / "inner").parent == storage
    storage.download(tmp_path / "back")
    assert contents(tmp_path / "back") == contents(tree)
    with storage.fetched() as folder:
        assert contents(folder) == contents(tree)
    assert folder.exists() == (storage.path is not None), "a copy goes, the folder itself stays"


def test_copies_and_moves(storage: Storage, tree: Path) -> None:
    (storage / "one").upload(tree)
    (storage / "one").copy_to(storage / "two")
    (storage / "two").move_to(storage / "three")
    assert storage.folders() == ["one", "three"]
    assert (storage / "three").read("top.txt") == b"top"
    (storage / "one").remove()
    (storage / "none").remove()
    assert storage.folders() == ["three"]


def test_what_is_not_there(storage: Storage, tmp_path: Path) -> None:
    assert storage.folders() == []
    with pytest.raises(FileNotFoundError):
        storage.download(tmp_path / "nothing")


def test_it_is_tried_before_it_is_used(storage: Storage) -> None:
    storage.check()
    with storage.fetched() as folder:
        assert list(folder.iterdir()) == [], "nothing of the trial is left"


def test_a_bucket_that_is_not_there(bucket: str) -> None:
    with pytest.raises(BadInput, match=r"storage: s3://no-such-bucket/runs cannot be used: .+") as fault:
        Storage.at("s3://no-such-bucket/runs").check()
    assert "\n" not in str(fault.value)


def test_a_folder_that_cannot_be_written() -> None:
    with pytest.raises(BadInput, match=r"storage: /proc/runs cannot be used"):
        Storage.at("/proc/runs").check()


@pytest.mark.parametrize("text", ["ftp://host/runs", "s3://", "s3:///runs", "http://host/bucket"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match=r"storage: read .*; allowed: local, a folder that all nodes share, or s3://"):
        Storage.at(text)


def test_credentials_in_an_address_are_refused_and_not_shown() -> None:
    with pytest.raises(BadInput, match="AWS_SECRET_ACCESS_KEY") as fault:
        Storage.at("s3://key:s3cret@bucket/runs")
    assert "s3cret" not in str(fault.value)


def test_options_of_an_address_stay_at_its_end() -> None:
    storage = Storage.at("s3://bucket/runs/?scheme=http&endpoint_override=127.0.0.1%3A9000") / "digits"
    assert storage.uri == "s3://bucket/runs/digits?scheme=http&endpoint_override=127.0.0.1%3A9000"
    assert storage.name == "digits"
    other = storage.beside("bucket/runs/digits/tune/a")
    assert other.uri == "s3://bucket/runs/digits/tune/a?scheme=http&endpoint_override=127.0.0.1%3A9000"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
