"""What a sweep's run in MLflow has of its winner, where a resume has found another one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu.config import SweepConfig
from raygpu.config.sections import TrackingSection
from raygpu.records.best_trial import write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.scoring import TrialScores
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.tracking.client import Refused
from raygpu.tracking.runs import RunTree
from raygpu.tracking.session import SweepSession
from raygpu.workflow.promotion import promoted

COUNTS = dict.fromkeys(("completed", "diverged", "stopped_early", "failed"), 0)


class Ended:
    """A sweep whose every start ends with a winner, by its run in MLflow."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = RunDirectory.create(folder, "night"), uri
        values = {"experiment": "a:B", "trials": 2, "epochs": 9, "space": {"x": 1}, "tracking": {"uri": uri}}
        self.config = SweepConfig.model_validate(values)
        self.folder.write_config(self.config, folder)

    def end(self, trial_id: str, epoch: int, *, checkpoint: bool = True, files: tuple[str, ...] = ()) -> list[str]:
        """End a start with this winner; return the lines of its end."""
        record = TrialRecord(Trial(trial_id, 0, {"x": 1}), "finished", 0.5, scores=TrialScores(0.5, last_epoch=epoch))
        write_best(self.folder, self.config, record)
        if checkpoint:
            (self.folder.checkpoints / trial_id).mkdir(parents=True, exist_ok=True)
            (self.folder.checkpoints / trial_id / "checkpoint.pt").write_text(f"{trial_id} at {epoch}")
        for name in files:
            (self.folder.trials / trial_id / "files").mkdir(parents=True, exist_ok=True)
            (self.folder.trials / trial_id / "files" / name).touch()
        session = SweepSession(self.config, self.folder, lambda: RunTree.open(self.uri, "raygpu"))
        session.tree()
        best = {"trial_id": trial_id, "score": 0.5, "epoch": epoch}
        summary: dict[str, Any] = {**COUNTS, "score": "last", "best": best}
        summary["tracking"] = session.identity(interrupted=False)
        return session.close(summary, interrupted=False)

    @property
    def run_id(self) -> str:
        return str(self.folder.read_run()["mlflow_run_id"])

    def parameters(self) -> str | None:
        """The content of the checkpoint for a warm start by the run's id."""
        start = promoted(self.run_id, lambda: TrackingSection(uri=self.uri), True).checkpoint
        return (start / "checkpoint.pt").read_text() if start is not None else None


@pytest.fixture
def sweep(tmp_path: Path, sqlite_uri: str) -> Ended:
    return Ended(tmp_path, sqlite_uri)


def test_a_warm_start_never_takes_the_parameters_of_an_earlier_winner(sweep: Ended) -> None:
    sweep.end("t0000", 3)
    assert sweep.parameters() == "t0000 at 3"
    sweep.end("t0001", 3, checkpoint=False)
    assert sweep.parameters() is None
    sweep.end("t0001", 4)
    assert sweep.parameters() == "t0001 at 4"
    (sweep.folder.checkpoints / "t0001" / "checkpoint.pt").unlink()
    sweep.end("t0001", 9, checkpoint=False)
    assert sweep.parameters() is None, "the parameters are those of epoch 4"


def test_a_checkpoint_that_could_not_be_uploaded_is_not_replaced_by_an_earlier_ones(
    sweep: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep.end("t0000", 3)
    log_artifact = RunTree.log_artifact

    def refused(tree: RunTree, run_id: str, path: Path, artifact_path: str | None = None) -> None:
        """Refuse the parameters, as a proxy does that takes no file of their size."""
        if path.name == "checkpoint.pt":
            raise Refused("too large")
        log_artifact(tree, run_id, path, artifact_path)

    with monkeypatch.context() as patch:
        patch.setattr(RunTree, "log_artifact", refused)
        assert "checkpoint.pt is not among the run's artifacts: too large" in sweep.end("t0001", 3)[-1]
    assert sweep.parameters() is None


def test_the_files_of_two_winners_scripts_do_not_mix(sweep: Ended) -> None:
    sweep.end("t0000", 3, files=("a.pt", "b.pt"))
    sweep.end("t0001", 3, files=("a.pt",))
    store = MlflowClient(sweep.uri)
    found = {trial: [file.path for file in store.list_artifacts(sweep.run_id, f"best/files/{trial}")]
             for trial in ("t0000", "t0001")}  # fmt: skip
    assert found == {
        "t0000": ["best/files/t0000/a.pt", "best/files/t0000/b.pt"],
        "t0001": ["best/files/t0001/a.pt"],
    }
