"""A worker that goes on from a checkpoint, after its process was killed at any moment."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train

from raygpu.engines.train import worker
from raygpu.engines.train.best_checkpoint import BestCheckpoint
from raygpu.engines.train.worker_reports import Notice
from raygpu.records.training_progress import Best, Progress, Restored
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult
from raygpu.storage import Storage


def checkpoint(folder: Path, epoch: int, score: float, best: tuple[float, int] | None, **more: Any) -> Path:
    """A checkpoint after an epoch with this score, as a worker writes it; the best one if `best` is its own."""
    folder.mkdir(parents=True)
    told = {"epoch": epoch, "step": 0, "score": score, "is_best": best == (score, epoch)}
    noted = {"best": None} if best is None else {"best": best[0], "best_epoch": best[1]}
    (folder / "progress.json").write_text(json.dumps({**told, **noted, "metrics": {epoch: {"loss": score}}, **more}))
    (folder / "state").write_text(f"epoch {epoch}")
    return folder


class Resumed:
    """A worker that goes on in a folder of checkpoints, with one rank and no training."""

    def __init__(
        self, checkpoints: Path, last: Path, monkeypatch: pytest.MonkeyPatch, state_epoch: int | None = None
    ) -> None:
        """state_epoch: of a function's own state; None of an experiment, whose state is the checkpoint's."""
        monkeypatch.setattr(ray.train, "get_checkpoint", lambda: ray.train.Checkpoint.from_directory(last))
        context = SimpleNamespace(get_storage=lambda: SimpleNamespace(storage_fs_path=str(checkpoints)))
        monkeypatch.setattr(ray.train, "get_context", lambda: context)
        epoch = json.loads((last / "progress.json").read_text())["epoch"] if state_epoch is None else state_epoch
        training = SimpleNamespace(load=lambda folder: None, notes=[], epoch=epoch)
        task = SimpleNamespace(epochs=6, warm_start=None, scoring=Scoring("loss", False))
        group = SimpleNamespace(ranks=SimpleNamespace(rank=0), mailbox=None)
        manager = worker._CheckpointManager(task, group, training)  # type: ignore[arg-type]
        manager.go_on(BestCheckpoint(Storage(str(checkpoints))))
        self.notes: list[str] = training.notes
        self.best = manager.best
        assert manager.restored is not None
        assert manager.restored.best == manager.best
        self.restored = manager.restored


def kept(checkpoints: Path) -> str | None:
    found = BestCheckpoint(Storage(str(checkpoints))).kept
    return None if found is None else found.read("state").decode()


def test_a_copy_of_the_best_checkpoint_that_was_cut_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint(tmp_path / "best", 1, 3.0, (3.0, 1))
    last = checkpoint(tmp_path / "training" / "checkpoint_2", 2, 1.0, (1.0, 2))
    (tmp_path / ".best").mkdir()
    (tmp_path / ".best" / "progress.json").write_text("{")
    resumed = Resumed(tmp_path, last, monkeypatch)
    assert (resumed.best, resumed.notes) == (Best(1.0, 2), [])
    assert kept(tmp_path) == "epoch 2"
    assert not (tmp_path / ".best").exists()


def test_the_first_best_checkpoint_is_copied_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    last = checkpoint(tmp_path / "training" / "checkpoint_1", 1, 3.0, (3.0, 1))
    assert Resumed(tmp_path, last, monkeypatch).best == Best(3.0, 1)
    assert kept(tmp_path) == "epoch 1"


def test_a_copy_that_is_whole_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was not yet moved to its place."""
    last = checkpoint(tmp_path / "training" / "checkpoint_2", 2, 1.0, (1.0, 2))
    checkpoint(tmp_path / "best", 1, 3.0, (3.0, 1))
    (checkpoint(tmp_path / ".best", 2, 1.0, (1.0, 2)) / "whole").touch()
    (tmp_path / ".best" / "state").write_text("copied before")
    resumed = Resumed(tmp_path, last, monkeypatch)
    assert (resumed.best, resumed.notes) == (Best(1.0, 2), [])
    assert kept(tmp_path) == "copied before"


@pytest.mark.parametrize("is_kept", [True, False])
def test_a_best_score_without_a_checkpoint_is_forgotten_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_kept: bool
) -> None:
    """The last checkpoint, of the middle of the next epoch, is not the best one's state."""
    last = checkpoint(tmp_path / "training" / "checkpoint_3", 2, 1.0, (1.0, 2), is_best=False, step=7)
    if is_kept:
        checkpoint(tmp_path / "best", 1, 3.0, (3.0, 1))
    resumed = Resumed(tmp_path, last, monkeypatch)
    assert resumed.best == (Best(3.0, 1) if is_kept else None)
    instead = "the one of epoch 1 is kept, score 3" if is_kept else "no other is kept"
    assert resumed.notes == [f"the checkpoint of the best epoch, 2, score 1, is lost; {instead}"]
    assert kept(tmp_path) == ("epoch 1" if is_kept else None)


@pytest.mark.parametrize("state_epoch", [0, 2])
def test_the_best_score_of_a_lost_attempt_of_a_function_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state_epoch: int
) -> None:
    """Its epochs after its own last checkpoint are trained anew, and may come to other scores."""
    last = checkpoint(tmp_path / "training" / "checkpoint_5", 5, 2.0, (1.0, 3))
    checkpoint(tmp_path / "best", 3, 1.0, (1.0, 3))
    resumed = Resumed(tmp_path, last, monkeypatch, state_epoch)
    assert resumed.restored == Restored(state_epoch, {}, None)
    assert resumed.notes == [
        "the best epoch so far, 3, score 1, does not count any more: the training goes on after epoch"
        f" {state_epoch}, and trains its later epochs anew"
    ]
    assert kept(tmp_path) is None


def test_the_best_score_up_to_a_function_s_own_checkpoint_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = {epoch: {"loss": 1.0 * epoch} for epoch in range(1, 6)}
    last = checkpoint(tmp_path / "training" / "checkpoint_5", 5, 2.0, (1.0, 3), metrics=metrics)
    checkpoint(tmp_path / "best", 3, 1.0, (1.0, 3))
    earlier = {1: {"loss": 1.0}, 2: {"loss": 2.0}}
    assert Resumed(tmp_path, last, monkeypatch, 3).restored == Restored(3, {"loss": 3.0}, Best(1.0, 3), False, earlier)
    assert kept(tmp_path) == "epoch 3"


def test_a_function_that_has_ended_keeps_its_history_without_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = checkpoint(tmp_path / "training" / "checkpoint_5", 5, 2.0, (1.0, 3), ended=True)
    checkpoint(tmp_path / "best", 3, 1.0, (1.0, 3))
    assert Resumed(tmp_path, last, monkeypatch, 0).restored == Restored(5, {"loss": 2.0}, Best(1.0, 3), ended=True)


def progress(epoch: int, loss: float | None, request: Any = "") -> Progress:
    """After an epoch with this loss, or within the epoch without one."""
    result = EpochResult(epoch, {"loss": loss}) if loss is not None else None
    return Progress(epoch, 4 if result else 2, 4, 0.1, 1.0, (8,), (8.0,), (8,), None, request, result)


def test_a_checkpoint_within_an_epoch_has_the_metrics_of_the_epoch_before(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [*(progress(epoch, 1.0 / epoch) for epoch in range(1, 8)), progress(8, None, "checkpoint")]

    class Training:
        """Seven epochs, and a part of the eighth; a line after the first."""

        epoch = 0
        notes = ()

        def __init__(self) -> None:
            self.notes = ["told at the start"]

        def advance(self) -> Progress | None:
            report = reports.pop(0) if reports else None
            self.epoch += report is not None and report.result is not None
            self.notes += ["smaller"] * (self.epoch == 1) + ["at the end"] * (report is None)
            return report

    saved: list[dict[str, Any]] = []
    monkeypatch.setattr(
        worker,
        "CheckpointWriter",
        lambda *_: SimpleNamespace(begin=lambda entry, files, report: saved.append(json.loads(files["progress.json"]))),
    )
    task: Any = SimpleNamespace(
        epochs=9, checkpoint_epochs=5, scoring=Scoring("loss", False), run="mine", trial=SimpleNamespace(trial_id="t")
    )
    told: list[Any] = []
    group: Any = SimpleNamespace(ranks=SimpleNamespace(rank=0), mailbox=None, report=told.append)
    training: Any = Training()
    requests: Any = SimpleNamespace(saved=lambda: None)
    manager = worker._CheckpointManager(task, group, training)
    worker._train_to_the_end(group, manager, requests)
    assert [report.line for report in told if isinstance(report, Notice)] == ["smaller", "at the end"]
    within = saved[1]
    assert (within["epoch"], within["step"], within["is_best"]) == (7, 2, False)
    assert within["metrics"] == {str(epoch): {"loss": 1.0 / epoch} for epoch in range(1, 8)}
    assert within["score"] == 1.0 / 7
    assert (within["best"], within["best_epoch"]) == (1.0 / 5, 5), "an epoch whose checkpoint is kept"
