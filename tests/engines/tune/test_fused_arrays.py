"""From where an array that runs out of memory goes on; `test_out_of_memory.py` has whole sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raygpu.engines.tune import trainable
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.fused_arrays import FusedArrays
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.planning.gpu_shares import Share
from raygpu.records.run_directory import MEMBERS, PROGRESS
from raygpu.search.scoring import Scoring, TrialScores
from raygpu.search.trials import EpochResult, Trial
from raygpu.storage import Storage

TRIALS = [Trial("t0000", 0, {}), Trial("t0001", 1, {})]


class Made(FusedArrays):
    """An array of a test: it notes what it is loaded from."""

    loaded: list[str]

    def _make(self, trials: list[Trial]) -> Any:
        return SimpleNamespace(
            trials=trials,
            tiles=[SimpleNamespace(width=self.width or len(trials))],
            load=lambda folder: self.loaded.append((folder / "epoch").read_text()),
            save=lambda folder: (folder / "epoch").write_text("of its own"),
            close=lambda: None,
        )

    def _array_cache(self) -> Any:
        return None


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr("raygpu.training.fused.width.settle", lambda *_: [])
    nothing: Any = SimpleNamespace()
    made = Made(nothing, None, None, nothing, SimpleNamespace(width=None, mean_epochs=1.0))  # type: ignore[arg-type]
    made.loaded = []
    return made


def test_without_a_checkpoint_it_begins_again(arrays: Made) -> None:
    arrays.begin(TRIALS)
    assert arrays.narrow(())
    assert arrays.warnings == ["out of memory with 2 trials at once; goes on with 1 from the beginning"]
    arrays.current()
    assert arrays.loaded == []


@pytest.mark.parametrize("saved", [False, True])
def test_it_goes_on_from_its_last_checkpoint_also_from_one_of_a_lost_worker(
    arrays: Made, tmp_path: Path, saved: bool
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/epoch").write_text("of a lost worker")
    arrays.begin(TRIALS, tmp_path / "given")
    if saved:
        (tmp_path / "own").mkdir()
        arrays.save(tmp_path / "own")
    assert arrays.narrow(())
    assert arrays.warnings == ["out of memory with 2 trials at once; goes on with 1 from its last checkpoint"]
    arrays.current()
    assert arrays.loaded == ["of a lost worker", "of its own" if saved else "of a lost worker"]


def test_trials_that_have_ended_are_not_trained_again_where_they_could_not_be_dropped(arrays: Made) -> None:
    arrays.begin(TRIALS)
    assert arrays.narrow({"t0000"})
    assert arrays.current().trials == TRIALS[1:]


@pytest.mark.parametrize("of_a_population", [False, True])
def test_trials_that_memory_does_not_hold_follow_with_a_word(
    of_a_population: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.training.fused.width.capacity", lambda *_: (None, 1))
    monkeypatch.setattr("raygpu.training.fused.model_array.TorchArray", lambda *_, **__: None)
    shared = SimpleNamespace(epochs=1, precision="fp32", folds=None, population=None)
    part = SimpleNamespace(device="cpu", share=Share(1), threads_per_trial=1)
    settings = SimpleNamespace(width=None, host_memory_gib={"cpu": 1.0})
    made = FusedArrays(shared, (), None, part, settings)  # type: ignore[arg-type]
    made.evolution = SimpleNamespace() if of_a_population else None  # type: ignore[assignment]
    made._make(TRIALS)
    assert made.waiting == TRIALS[1:]
    (line,) = made.lines
    assert line.startswith("1 of 2 trials fit in memory at once; the others follow")
    assert line.endswith("the result depends on the memory") == of_a_population


class Attempt:
    """An array whose scores are other ones in each attempt. It runs out of memory after its third epoch if it is wide,
    or where it is loaded."""

    def __init__(self, trials: list[Trial], width: int, scores: list[float], *, full_at_load: bool) -> None:
        self.trials, self.scores, self.full_at_load, self.epoch = trials, scores, full_at_load, 0
        self.tiles = [SimpleNamespace(width=width)]

    def load(self, folder: Path) -> None:
        if self.full_at_load:
            raise torch.cuda.OutOfMemoryError
        self.epoch = int((folder / "epoch").read_text())

    def save(self, folder: Path) -> None:
        (folder / "epoch").write_text(str(self.epoch))

    def run_epoch(self) -> dict[str, EpochResult]:
        if self.epoch == 3 and self.tiles[0].width > 1:
            raise torch.cuda.OutOfMemoryError
        self.epoch += 1
        metrics = {"accuracy": self.scores[self.epoch - 1]}
        return {trial.trial_id: EpochResult(self.epoch, metrics) for trial in self.trials}

    def has_saved(self, epoch: int) -> bool:
        return True

    def save_member(self, name: str, folder: Path) -> None:
        (folder / "epoch").write_text(f"{self.epoch} of {self.scores}")

    def audit(self, trial_id: str) -> None:
        return

    def drop(self, trial_ids: Any) -> None:
        self.trials = [trial for trial in self.trials if trial.trial_id not in trial_ids]

    def close(self) -> None:
        return


class Attempts(Made):
    """Arrays of a test whose attempts differ."""

    made: list[Attempt]
    full_at_load = False

    def _make(self, trials: list[Trial]) -> Any:
        scores = [0.1, 0.2, 0.9, 0.9] if not self.made else [0.1, 0.3, 0.4, 0.5]
        full = self.full_at_load and not self.made
        self.made.append(Attempt(trials, self.width or len(trials), scores, full_at_load=full))
        return self.made[-1]


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ArrayTrainable:
    monkeypatch.setattr("raygpu.training.fused.width.settle", lambda *_: [])
    monkeypatch.setattr("raygpu.training.fused.width.resettle", lambda *_: [])
    monkeypatch.setattr(trainable, "REPORT_S", 0.0)  # each step trains an epoch
    context = SimpleNamespace(get_node_id=lambda: "a")
    monkeypatch.setattr(trainable, "ray", SimpleNamespace(get_runtime_context=lambda: context, get_gpu_ids=list))
    made = object.__new__(ArrayTrainable)
    source: Any = SimpleNamespace(kind="torch")
    shared: Any = SimpleNamespace(
        source=source,
        scoring=Scoring("accuracy", True, "best"),
        keep_all=True,
        epochs=4,
        rule=None,
        decision_epochs=None,
        checkpoint_s=0.0,
        trial_files=Storage(str(tmp_path)),
        activity=lambda *_: None,
    )
    made.shared, made._device_is_broken, made._saving_s = shared, False, 0.0
    made._storage = SimpleNamespace(trial_fs_path=str(tmp_path / "tune" / "array"))  # type: ignore[assignment]
    made.cap = SimpleNamespace(lift=lambda: None)  # type: ignore[assignment]
    monkeypatch.setattr(trainable.activity, "note", lambda _: None)
    shared.trials = {trial.trial_id: trial for trial in TRIALS}
    made._take_array(ArrayConfig("array", tuple(shared.trials), True, "cpu", Share(1)))
    arrays = Attempts(shared, None, None, shared, SimpleNamespace(width=None, mean_epochs=1.0))  # type: ignore[arg-type]
    arrays.made, arrays.waiting = [], list(TRIALS)
    made.arrays = arrays
    return made


@pytest.mark.parametrize("saved_at", [None, 1, 2])
def test_a_narrower_array_does_not_keep_the_scores_of_the_attempt_before(
    worker: ArrayTrainable, tmp_path: Path, saved_at: int | None
) -> None:
    results = []
    for number in range(1, 4):
        results.append(worker.step())
        if number == saved_at:
            worker.save_checkpoint(str(tmp_path))
    lost = worker.step()
    assert (lost["failure"], lost["under_way"]) == (None, shared_names() if saved_at else [])
    assert not lost["should_checkpoint"], "there is nothing that the last one does not have"
    first = worker.step()
    for report in first["members"]:
        expected = {
            None: TrialScores(),
            1: TrialScores(0.1, 0.1, 1, 1),
            2: TrialScores(0.2, 0.2, 2, 2),
        }[saved_at]
        assert report.beginning.epoch == (saved_at or 0)
        assert report.beginning.scores == expected
    while not (last := worker.step())["done"]:
        assert last["failure"] is None
    for name in shared_names():
        assert worker.kept.scores[name].found == (0.5, 4, None), "not 0.9, of the attempt before"
        assert (worker.kept.folder / name / "epoch").read_text() == "4 of [0.1, 0.3, 0.4, 0.5]"
    worker.cleanup()


def test_a_checkpoint_between_an_out_of_memory_and_the_narrower_array_is_the_last_one(
    worker: ArrayTrainable, tmp_path: Path
) -> None:
    """As of a sweep that stops in this moment."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    for _ in range(2):
        worker.step()
    worker.save_checkpoint(str(first))
    (first / PROGRESS).unlink()  # the copy that is kept beside the array is read
    worker.step()
    assert worker.step()["under_way"] == shared_names(), "out of memory"
    worker.save_checkpoint(str(second))
    progress = json.loads((second / PROGRESS).read_text())
    assert progress["under_way"] == shared_names()
    assert [scores["last_epoch"] for scores in progress["scores"].values()] == [2, 2]
    assert (second / "epoch").read_text() == "2"
    assert worker.step()["members"][0].beginning.epoch == 2
    worker.cleanup()


def test_parameters_of_a_best_epoch_before_the_checkpoint_come_back(worker: ArrayTrainable, tmp_path: Path) -> None:
    for _ in range(2):
        worker.step()
    worker.save_checkpoint(str(tmp_path))
    worker.step()
    worker.step()
    for name in shared_names():
        own = worker.kept.folder / name / "epoch"
        assert own.read_text() == (tmp_path / MEMBERS / name / "epoch").read_text() == "2 of [0.1, 0.2, 0.9, 0.9]"
    worker.cleanup()


def test_out_of_memory_while_a_checkpoint_loads_the_driver_is_told_where_it_goes_on(
    worker: ArrayTrainable, tmp_path: Path
) -> None:
    for _ in range(2):
        worker.step()
    worker.save_checkpoint(str(tmp_path))
    arrays: Any = worker.arrays
    arrays.made, arrays.full_at_load, arrays.array = [], True, None
    worker._has_reported = False
    try:
        worker._go_on(tmp_path)
    except torch.cuda.OutOfMemoryError as error:
        worker._fail(error)
    result = worker.step()
    assert {report.trial_id: report.beginning.epoch for report in result["members"]} == dict.fromkeys(shared_names(), 2)
    worker.cleanup()


def shared_names() -> list[str]:
    return [trial.trial_id for trial in TRIALS]
