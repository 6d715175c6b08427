"""A run in object storage that two machines work on by turns: what is fetched, and what goes back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tomli_w

from raygpu.errors import BadInput
from raygpu.records import run_lock, stored_run
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import Storage, StorageError

EARLIER, LATER = b'{"event":"start","at":1.0}\n', b'{"event":"start","at":2.0}\n'


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def machine(tmp_path: Path, name: str) -> RunDirectory:
    """Return the run's folder on a machine, which need not be there yet."""
    return RunDirectory(tmp_path / name / "runs" / "digits", Storage(str(tmp_path / "bucket" / "digits")))


def begun(run: RunDirectory) -> None:
    run.path.mkdir(parents=True, exist_ok=True)
    if not run.config.exists():
        values = {"name": "digits", "experiment": "a:B", "storage": str(run.shared.parent)}
        run.config.write_text(tomli_w.dumps(values))
        run.write_run({"kind": "sweep"})
    run.note_start()


@pytest.fixture
def laptop(tmp_path: Path) -> RunDirectory:
    """The folder of a sweep that was interrupted on one machine, and whose copy is in the storage."""
    run = machine(tmp_path, "laptop")
    begun(run)
    for folder in (run.best, run.plots, run.checkpoints / "t0000"):
        folder.mkdir(parents=True)
        (folder / "file").write_text("laptop")
    for file in (run.best_toml, run.report, run.journal, run.trials_csv, run.error):
        file.write_text("laptop")
    run.timeline.write_bytes(EARLIER)
    run.write_summary({"of": "laptop"})
    run.publish()
    (run.path / "notes.txt").write_text("mine")
    return run


@pytest.fixture
def cluster(laptop: RunDirectory, tmp_path: Path) -> RunDirectory:
    """The folder of another machine that has gone on with the sweep and ended it, without a best trial."""
    run = machine(tmp_path, "cluster")
    run.path.mkdir(parents=True)
    stored_run.fetch(run)
    begun(run)
    for file in (run.best_toml, run.journal, run.error):
        file.unlink()
    for file in (run.report, run.trials_csv, run.objectives_csv):
        file.write_text("cluster")
    for folder in (run.best, run.plots, run.checkpoints / "t0000"):
        shutil.rmtree(folder, ignore_errors=True)
    run.plots.mkdir()
    for folder in (run.plots, run.checkpoints / "t0000"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "another").write_text("cluster")
    for name in ("best", "plots", "checkpoints"):
        (run.shared / name).remove()
    run.timeline.write_bytes(EARLIER + LATER)
    run.write_summary({"of": "cluster"})
    run.publish()
    return run


def test_a_folder_here_gets_what_another_machine_has_left_since(laptop: RunDirectory, cluster: RunDirectory) -> None:
    run = RunDirectory.existing(laptop.path)
    assert run.read_summary() == {"of": "cluster"}
    assert run.timeline.read_bytes() == EARLIER + LATER
    assert [file.read_text() for file in (run.report, run.trials_csv, run.objectives_csv)] == ["cluster"] * 3
    assert contents(run.plots) == {"another": b"cluster"}
    gone = (run.best_toml, run.journal, run.error, run.best, run.checkpoints / "t0000")
    assert not [path.name for path in gone if path.exists()]
    assert (run.path / "notes.txt").read_text() == "mine"
    kept = run.checkpoint("t0000")
    assert kept is not None
    assert contents(kept) == {"another": b"cluster"}


def test_a_delivery_leaves_the_results_of_another_machine_in_the_storage(
    laptop: RunDirectory, cluster: RunDirectory, tmp_path: Path
) -> None:
    before = contents(tmp_path / "bucket")
    run = RunDirectory.existing(laptop.path)
    run.timeline.write_bytes(b"of nobody")
    run.write_summary({"of": "cluster", "tracking": {}})
    run.hand_over()
    after = contents(tmp_path / "bucket")
    assert json.loads(after.pop("digits/summary.json")) == {"of": "cluster", "tracking": {}}
    assert after == {name: content for name, content in before.items() if name != "digits/summary.json"}


def test_a_delivery_by_a_third_machine_takes_what_it_has_delivered_out_of_the_storage(
    laptop: RunDirectory, tmp_path: Path
) -> None:
    third = machine(tmp_path, "third")
    third.path.mkdir(parents=True)
    stored_run.fetch(third)
    assert third.journal.read_text() == "laptop"
    third.journal.unlink()
    third.publish()
    assert not third.shared.has(third.journal.name)


def test_a_start_here_that_was_killed_keeps_what_it_has_not_published(laptop: RunDirectory) -> None:
    laptop.note_start()
    laptop.write_summary({"of": "a later start"})
    laptop.best_toml.unlink()
    (laptop.plots / "file").write_text("later")
    before = contents(laptop.path)
    assert contents(RunDirectory.existing(laptop.path).path) == before
    stored_run.fetch(laptop)  # as by its URI
    assert contents(laptop.path) == before
    laptop.publish()
    assert not laptop.shared.has("best.toml")


@pytest.mark.parametrize("is_noted_there", [True, False])
def test_a_start_here_that_ends_while_it_is_noted_costs_nothing(
    laptop: RunDirectory, monkeypatch: pytest.MonkeyPatch, is_noted_there: bool
) -> None:
    """By a kill after object storage has its note, or by a fault of that."""
    laptop.best_toml.write_text("of the start before, which was killed")
    write_run = RunDirectory.write_run

    def stopped(run: RunDirectory, values: dict[str, str]) -> None:
        if is_noted_there:
            write_run(run, values)
        raise StorageError("storage: no answer")

    monkeypatch.setattr(RunDirectory, "write_run", stopped)
    with pytest.raises(StorageError):
        laptop.note_start()
    monkeypatch.undo()
    before = {name: text for name, text in contents(laptop.path).items() if name != "run.json"}
    run = RunDirectory.existing(laptop.path)
    assert {name: text for name, text in contents(run.path).items() if name != "run.json"} == before
    run.publish()
    assert run.shared.read("best.toml") == laptop.best_toml.read_bytes()


def test_an_edit_of_what_was_fetched_stays(laptop: RunDirectory, cluster: RunDirectory) -> None:
    run = RunDirectory.existing(laptop.path)
    run.config.write_text(run.config.read_text() + "epochs = 4\n")
    assert RunDirectory.existing(laptop.path).config.read_text().endswith("epochs = 4\n")
    cluster.note_start()
    assert "epochs" not in RunDirectory.existing(laptop.path).config.read_text()


def test_a_start_goes_on_from_the_results_of_another_machine(laptop: RunDirectory, cluster: RunDirectory) -> None:
    run = RunDirectory.existing(laptop.path)
    begun(run)
    run.write_summary({"of": "laptop, again"})
    run.publish()
    assert RunDirectory.existing(cluster.path).read_summary() == {"of": "laptop, again"}


def test_files_of_a_process_that_works_on_the_run_stay(laptop: RunDirectory, cluster: RunDirectory) -> None:
    run_lock.claim(laptop.path)
    try:
        assert RunDirectory.existing(laptop.path).read_summary() == {"of": "laptop"}
    finally:
        run_lock.release(laptop.path)


def test_a_folder_that_cannot_be_written_is_not_read_in_its_earlier_state(
    laptop: RunDirectory, cluster: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(BadInput, match=f"another machine has gone on with the run since; name it as {laptop.storage}"):
        RunDirectory.existing(laptop.path)


@pytest.mark.parametrize("state", [None, b"{", b"[]"])
def test_a_run_without_a_state_in_the_storage_is_read_as_it_is(laptop: RunDirectory, state: bytes | None) -> None:
    if state is None:
        laptop.shared.discard("run.json")
    else:
        laptop.shared.write("run.json", state)
    assert RunDirectory.existing(laptop.path).read_summary() == {"of": "laptop"}


def test_readers_alone_do_without_the_storage(laptop: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def require_answer(self: Storage) -> None:
        """Fail as a storage that is out of reach."""
        raise StorageError(f"storage: {self}: no answer")

    monkeypatch.setattr(Storage, "require_answer", require_answer)
    lines = list[str]()
    assert RunDirectory.to_read(laptop.path, "report", lines.append).read_summary() == {"of": "laptop"}
    assert lines == [f"storage: {laptop.storage}: no answer; what lies in {laptop.path} is read, and may be older"]
    with pytest.raises(StorageError, match="no answer"):
        RunDirectory.existing(laptop.path)


def test_a_renamed_folder_has_the_storage_of_its_run(laptop: RunDirectory, cluster: RunDirectory) -> None:
    renamed = laptop.path.rename(laptop.path.with_name("other"))
    run = RunDirectory.existing(renamed)
    assert run.storage == laptop.storage
    assert run.read_summary() == {"of": "cluster"}


def test_without_a_noted_start_what_is_longer_here_stays(tmp_path: Path) -> None:
    run = machine(tmp_path, "here")
    run.path.mkdir(parents=True)
    run.timeline.write_bytes(EARLIER + LATER)
    run.journal.write_text("here")
    run.best_toml.write_text("here")
    for name, content in {"run.json": b"{}", "timeline.jsonl": EARLIER, "undelivered.jsonl": b"there"}.items():
        run.shared.write(name, content)
    stored_run.fetch(run)
    assert (run.timeline.read_bytes(), run.run.read_bytes()) == (EARLIER + LATER, b"{}")
    assert (run.journal.read_text(), run.best_toml.read_text()) == ("here", "here")
    run.shared.write("timeline.jsonl", EARLIER + LATER + EARLIER)  # another machine has gone on with it
    stored_run.fetch(run)
    assert run.timeline.read_bytes() == EARLIER + LATER + EARLIER
