"""The folder of a measurement that has ended, and its copy in object storage."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import TrackingError
from raygpu.records.run_directory import RunDirectory
from raygpu.storage import Storage, StorageError
from raygpu.workflow.run_folder import published, ready_folder


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path / "here", Storage(str(tmp_path / "shared")))
    made.path.mkdir()
    made.points_csv.write_text("n")
    return made


@pytest.fixture
def out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    def upload(self: Storage, path: Path) -> None:
        """Fail as a storage does."""
        raise StorageError(f"storage: {self}: no answer")

    monkeypatch.setattr(Storage, "upload", upload)


def test_a_measurement_is_where_its_storage_is(folder: RunDirectory) -> None:
    with published(folder, pytest.fail) as kept:
        assert str(kept) == str(folder.storage)
    assert folder.shared.read("points.csv") == b"n"


@pytest.mark.usefixtures("out_of_reach")
def test_a_measurement_whose_storage_fails_is_told_to_be_here_and_goes_to_mlflow(folder: RunDirectory) -> None:
    lines, tracked = list[str](), []
    with pytest.raises(StorageError, match="lacks results, which are in"), published(folder, lines.append) as kept:
        tracked.append(str(kept))
    assert tracked == [str(folder.path)]
    assert lines == [f"storage: {folder.storage}: no answer; the results are in {folder.path}"]


@pytest.mark.usefixtures("out_of_reach")
def test_a_fault_of_mlflow_is_told_beside_that_of_the_storage(folder: RunDirectory) -> None:
    lines = list[str]()
    with pytest.raises(TrackingError, match="no server"), published(folder, lines.append):
        raise TrackingError("no server")
    assert len(lines) == 1


def test_each_start_notes_that_the_run_is_in_its_folder(tmp_path: Path) -> None:
    places = {"runs_dir": str(tmp_path / "runs"), "storage": str(tmp_path / "bucket")}
    config = SweepConfig.model_validate({"experiment": "a:B", "name": "one", "trials": 1, "space": {"x": 1}} | places)
    cluster, ids = cast(Any, SimpleNamespace(require=lambda storage: None)), set[str]()
    resume: RunDirectory | None = None
    for _ in range(2):
        with ready_folder(config, resume, cluster, pytest.fail) as resume:
            resume.write_config(config, tmp_path)
        noted = (resume.path / ".start").read_text().split()[-1]
        assert json.loads(resume.shared.read("run.json"))["last_start"] == noted
        ids.add(noted)
        resume.hand_over()
    assert len(ids) == 2
