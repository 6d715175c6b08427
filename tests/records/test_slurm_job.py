"""The record of a Slurm job in its run's folder, and the list of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from raygpu.errors import BadInput
from raygpu.records import slurm_job
from raygpu.records.run_directory import RunDirectory
from raygpu.records.slurm_job import FOLDER, VARIABLE, SlurmJob


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


def record(folder: Path, number: str = "12") -> SlurmJob:
    folder.mkdir(parents=True, exist_ok=True)
    return SlurmJob(f"sweep-{folder.name}", "sweep", number, str(folder), float(number)).write(script="/job.sh")


def test_the_list_outlives_folders_that_are_gone(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "b", "c")):
        record(tmp_path / name, str(number))
        slurm_job.register(tmp_path / name)
    slurm_job.delete_run(tmp_path / "b")
    assert [job.job_id for job in slurm_job.submitted()] == ["sweep-c", "sweep-b", "sweep-a"]
    for file in (tmp_path / "b" / FOLDER).iterdir():
        file.unlink()
    (tmp_path / "b" / FOLDER).rmdir()
    (tmp_path / "b").rmdir()
    assert [job.job_id for job in slurm_job.submitted()] == ["sweep-c", "sweep-a"]


def test_a_record_of_a_moved_folder_names_the_new_one(tmp_path: Path) -> None:
    record(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    found = slurm_job.read(tmp_path / "b")
    assert found is not None
    assert found.folder == str(tmp_path / "b")


def test_a_damaged_record_is_none(tmp_path: Path) -> None:
    record(tmp_path / "a")
    for content in ("{", "[]"):
        (tmp_path / "a" / slurm_job.RECORD).write_text(content)
        assert slurm_job.read(tmp_path / "a") is None


def test_the_run_of_a_job_takes_the_folder_that_was_made_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path / "one")
    with pytest.raises(BadInput, match="exists already"):  # another command may not
        RunDirectory.create(tmp_path, "one")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "one"))
    folder = RunDirectory.create(tmp_path, "one")
    assert folder.resumed_by("sweep") == "sbatch /job.sh"
    with pytest.raises(BadInput, match="exists already"):  # nor this one a second time
        RunDirectory.create(tmp_path, "one")
    (folder.path / "summary.json").write_text("{}")
    folder.remove()
    assert [each.name for each in folder.path.iterdir()] == [FOLDER]
    RunDirectory.create(tmp_path, "one")
