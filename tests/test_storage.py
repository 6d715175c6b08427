"""Folders that all nodes reach, in a file system and in object storage."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records.best_trial import drop_description
from raygpu.records.run_directory import RunDirectory
from raygpu.records.scratch import fetched
from raygpu.storage import Storage, _file_system
from tests.services.s3 import BUCKET, s3
from tests.tracking.services import free_port


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
    with fetched(storage) as folder:
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
    with fetched(storage) as folder:
        assert list(folder.iterdir()) == [], "nothing of the trial is left"


def test_a_question_mark_is_a_letter_of_a_path(tmp_path: Path) -> None:
    folder = Storage.at(str(tmp_path / "a?b" / "runs"))
    below = folder / "sweep"
    assert (below.uri, below.name) == (f"{tmp_path}/a?b/runs/sweep", "sweep")
    assert below.parent == folder
    below.write("x.txt", b"x")
    assert (tmp_path / "a?b" / "runs" / "sweep" / "x.txt").read_bytes() == b"x"


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


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_credentials_in_an_address_are_refused_and_not_shown(scheme: str) -> None:
    with pytest.raises(BadInput, match=r"AWS_SECRET_ACCESS_KEY|allowed: local") as fault:
        Storage.at(f"{scheme}://key:s3cret@bucket/runs")
    assert "s3cret" not in str(fault.value)


def test_options_of_an_address_stay_at_its_end() -> None:
    storage = Storage.at("s3://bucket/runs/?scheme=http&endpoint_override=127.0.0.1%3A9000") / "digits"
    assert storage.uri == "s3://bucket/runs/digits?scheme=http&endpoint_override=127.0.0.1%3A9000"
    assert storage.name == "digits"
    other = storage.beside("bucket/runs/digits/tune/a")
    assert other.uri == "s3://bucket/runs/digits/tune/a?scheme=http&endpoint_override=127.0.0.1%3A9000"


def run_folder(bucket: str, runs: Path, name: str) -> RunDirectory:
    """Of a sweep that has its results in object storage."""
    storage = f"{bucket}/{runs.parent.name}"
    folder = RunDirectory.create(runs, name, storage)
    values = {"experiment": "a:B", "trials": 1, "name": name, "storage": storage}
    folder.write_config(SweepConfig.model_validate(values), runs)
    return folder


def test_a_run_in_object_storage_goes_on_anywhere(
    bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(bucket, tmp_path / "runs", "one")
    assert str(folder) == f"{bucket}/{tmp_path.name}/one"
    folder.write_run({"mlflow_run_id": "abc"})
    folder.write_summary({"best": None})
    folder.journal.write_text("what waits")
    folder.publish()
    with pytest.raises(BadInput, match=rf"{folder} exists already; go on with it by --resume {folder}, or choose"):
        RunDirectory.create(tmp_path / "others", "one", f"{bucket}/{tmp_path.name}")

    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = RunDirectory.existing(str(folder))
    assert found.storage == folder.storage
    assert found.read_config().storage == f"{bucket}/{tmp_path.name}"
    assert found.read_run()["mlflow_run_id"] == "abc"
    assert found.journal.read_text() == "what waits"
    assert RunDirectory.existing(found.path).storage == folder.storage, "its folder here knows where the rest is"
    found.journal.unlink()
    found.publish()
    assert not folder.shared.has("undelivered.jsonl"), "what was delivered is not delivered again"
    found.remove()
    assert not folder.shared.has("config.toml")


def test_a_folder_here_gets_what_another_machine_has_left(
    bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(bucket, tmp_path / "runs", "one")
    folder.note_start()
    for path in (folder.best_toml, folder.plots / "score.png", folder.best / "predictions.csv"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("before")
    folder.write_summary({"best": None})
    folder.publish()
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    other = RunDirectory.existing(str(folder))
    assert (other.best / "predictions.csv").read_text() == "before"
    other.note_start()
    other.write_summary({"best": {"score": 1}})
    other.best_toml.unlink()
    drop_description(other)
    (other.plots / "score.png").write_text("since")
    other.objectives_csv.write_text("since")
    other.publish()
    assert RunDirectory.existing(folder.path).read_summary() == {"best": {"score": 1}}
    assert not folder.best_toml.exists()
    assert not folder.best.exists()
    assert [path.read_text() for path in (folder.plots / "score.png", folder.objectives_csv)] == ["since"] * 2


def test_another_run_of_that_name_stays_as_it_is(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(bucket, tmp_path / "there" / "runs", "one")
    monkeypatch.chdir(tmp_path)
    own = RunDirectory.create(Path("runs"), "one")
    own.write_config(SweepConfig.model_validate({"experiment": "mine:B", "trials": 1}), tmp_path)
    with pytest.raises(BadInput, match=r"runs/one is another run than s3://"):
        RunDirectory.existing(str(folder))
    assert own.read_config().experiment == "mine:B"


def test_where_nothing_can_be_written_a_run_is_read_all_the_same(
    bucket: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container's working folder."""
    folder = run_folder(bucket, tmp_path / "runs", "one")
    folder.publish()
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "runs").touch()
    monkeypatch.chdir(elsewhere)
    found = RunDirectory.existing(str(folder))
    assert found.storage == folder.storage
    assert found.name == "one"
    assert found.read_config().storage == f"{bucket}/{tmp_path.name}"
    assert [path.name for path in elsewhere.iterdir()] == ["runs"]


def test_a_run_that_is_not_there(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"is no run's folder: it has no config\.toml"):
        RunDirectory.existing(f"{bucket}/nothing")
    assert not (tmp_path / "runs").exists()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_storage_that_is_away_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and where Ray hands it to; pyarrow's own patience is six seconds, and one second after it is pickled."""
    from moto.server import ThreadedMotoServer

    with s3() as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        _file_system.cache_clear()
        storage = Storage.at(f"s3://{BUCKET}/kept")
        storage.write("a.txt", b"one")
        path, system = storage.for_ray()
        system = pickle.loads(pickle.dumps(system))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        _file_system.cache_clear()
        with pytest.raises(BadInput, match="Could not connect"):  # nothing was there from the first
            storage.check()

        port = urlsplit(variables["AWS_ENDPOINT_URL"]).port
    # The server has ended; another takes its port, with the buckets of this process.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    later = threading.Timer(3, server.start)
    later.start()
    try:
        assert system.get_file_info(f"{path}/a.txt").size == 3
    finally:
        later.join()
        server.stop()
        _file_system.cache_clear()
