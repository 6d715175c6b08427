"""raygpu.deliver, and what a run's session does with a store that fails at its beginning, in between or at its end."""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from raygpu import deliver
from raygpu.config import SweepConfig, TrainConfig
from raygpu.errors import TrackingError
from raygpu.records import trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import Timeline
from raygpu.search.trial_record import TrialRecord
from raygpu.tracking.client import Refused
from raygpu.tracking.runs import RunTree
from raygpu.tracking.session import SweepSession, TrainSession, open_store
from raygpu.tracking.writer import CpuLimit
from raygpu.workflow import training_run
from raygpu.workflow.training_run import TrainingRun
from tests.tracking.services import children, epoch, eventually, lose_first_run, losses, trial

SUMMARY = {
    "metric": "score", "score": "last",
    "best": {"trial_id": "t0000", "score": 0.5, "epoch": 1, "hyperparameters": {"x": 1}},
    "num_trials": 1, "completed": 1, "diverged": 0, "stopped_early": 0, "failed": 0, "interrupted": 0,
    "data": "real", "gpus": [], "wall_s": 1.0,
}  # fmt: skip


OTHERS: list[threading.Thread] = []


@pytest.fixture
def config(new_store: Callable[[Path], str], tmp_path: Path) -> SweepConfig:
    tracking = {"uri": new_store(tmp_path), "patience_s": 3}
    given = {"experiment": "tests.cases:ramp", "metric": "score", "name": "night", "trials": 1, "space": {"x": 1}}
    return SweepConfig.model_validate(given | {"tracking": tracking, "runs_dir": str(tmp_path / "runs")})


@pytest.fixture
def folder(config: SweepConfig, tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(Path(config.runs_dir), "night")
    made.write_config(config, tmp_path)
    return made


@pytest.fixture(autouse=True)
def others() -> Iterator[None]:
    """Threads that other tests of this process have left are not waited for."""
    OTHERS.extend(threading.enumerate())
    yield
    OTHERS.clear()


def no_delivery_hangs() -> None:
    eventually(lambda: not any(each.name == "raygpu-tracking" for each in {*threading.enumerate()} - {*OTHERS}))


@contextmanager
def locked(config: SweepConfig) -> Iterator[None]:
    with closing(sqlite3.connect(config.tracking.uri.removeprefix("sqlite:///"), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")


def begun(config: SweepConfig, folder: RunDirectory) -> SweepSession:
    return SweepSession(config, folder, open_store(config), cpus=CpuLimit(1.0))


def work(session: SweepSession) -> dict[str, Any]:
    """A sweep of one trial; the summary."""
    session.writer.begin(trial(0))
    session.writer.epochs("t0000", [epoch(1, 1.0)])
    session.writer.end(TrialRecord(trial(0), "finished"))
    summary = SUMMARY | {"tracking": session.identity(interrupted=False)}
    session.folder.write_summary(summary)
    return summary


def whole(config: SweepConfig) -> RunTree:
    """The store, in which the sweep is as if nothing had happened: one run, ended, with its trial and its files."""
    tree = RunTree.open(config.tracking.uri, config.tracking.experiment)
    no_delivery_hangs()
    found = tree.mlflow.search_runs([tree.experiment_id], "tags.`raygpu.kind` = 'sweep'")
    assert [run.info.status for run in found] == ["FINISHED"]
    tree.run_id = found[0].info.run_id
    runs = children(tree)
    trials = tree.mlflow.search_runs([tree.experiment_id], "tags.`raygpu.kind` = 'trial'")
    assert {run.info.run_id for run in trials} == {run.info.run_id for run in runs.values()}, "no trial is there twice"
    assert {name: run.info.status for name, run in runs.items()} == {"t0000": "FINISHED"}
    assert losses(tree, runs["t0000"]) == [(1, 1.0)]
    assert found[0].data.metrics["best/score"] == 0.5
    assert {item.path for item in tree.mlflow.list_artifacts(tree.run_id)} >= {"config.toml", "summary.json"}
    return tree


def test_a_store_that_is_locked_at_the_beginning_gets_all_once_it_is_free(
    config: SweepConfig, folder: RunDirectory
) -> None:
    tree = open_store(config)
    with locked(config):
        session = SweepSession(config, folder, tree, cpus=CpuLimit(1.0))
        summary = work(session)
        time.sleep(0.3)
    said = session.close(summary, interrupted=False)
    assert said == []
    assert (summary["tracking"]["undelivered"], summary["tracking"]["fault"]) == (0, None)
    assert summary["tracking"]["run_id"] == whole(config).run_id


def test_a_store_that_is_locked_throughout_gets_all_by_deliver(
    config: SweepConfig, folder: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = open_store(config)
    with locked(config):
        session = SweepSession(config, folder, tree, cpus=CpuLimit(1.0))
        summary = work(session)
        said = session.close(summary, interrupted=False)
        assert "3 writes are not in MLflow (the store has taken nothing for 3 s)" in said[-1]
        assert f"deliver by: raygpu deliver {folder}" in said[-1]
        assert summary["tracking"]["undelivered"] == 3
        assert deliver.main([str(folder)]) == 3
        assert f"deliver by: raygpu deliver {folder}" in capsys.readouterr().out
    no_delivery_hangs()
    assert deliver.main([str(folder)]) == 0
    assert "3 writes that an earlier start had left were delivered" in (out := capsys.readouterr().out)
    assert f"{folder}: all of it is in MLflow" in out
    whole(config)
    assert not folder.journal.exists()
    kept = json.loads(folder.summary.read_text())["tracking"]
    assert (kept["undelivered"], kept["fault"], kept["status"]) == (0, None, "finished")
    assert deliver.main([str(folder)]) == 0, "there is nothing left to deliver"
    whole(config)


def test_a_store_that_comes_later_than_it_was_waited_for_is_no_fault(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raygpu.tracking.session.OPEN_S", 0.1)
    tree = open_store(config)
    with locked(config):
        session = SweepSession(config, folder, tree, cpus=CpuLimit(1.0))
        with pytest.raises(TrackingError, match="the store was not ready"):
            session.tree()
    summary = work(session)
    assert session.close(summary, interrupted=False) == []
    assert summary["tracking"]["fault"] is None


def test_a_lost_answer_at_the_beginning_makes_no_second_run(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = open_store(config)
    assert tree is not None
    asked = lose_first_run(tree, monkeypatch)
    session = SweepSession(config, folder, tree, cpus=CpuLimit(1.0))
    assert session.close(work(session), interrupted=False) == []
    assert len(asked) == 2, "the run's, and the trial's"
    whole(config)


def test_a_process_that_died_before_it_noted_its_run_finds_it_again(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(SweepSession, "_note_run_id", lambda session, run_id: None)
        first = begun(config, folder)
        work(first)
        first.writer.close(30)
    assert "mlflow_run_id" not in folder.read_run()
    session = begun(config, folder)
    assert session.close(SUMMARY | {"tracking": session.identity(interrupted=False)}, interrupted=False) == []
    whole(config)


@pytest.mark.parametrize("refused", [True, False])
def test_a_run_whose_files_are_not_taken_has_ended_all_the_same(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    session = begun(config, folder)
    tree = session.tree()
    assert tree is not None

    def broken(*arguments: Any) -> None:
        raise Refused("no rights") if refused else ConnectionError("no answer from the bucket")

    with monkeypatch.context() as patched:
        patched.setattr(tree.mlflow, "log_artifact", broken)
        summary = work(session)
        said = session.close(summary, interrupted=False)
    assert tree.mlflow.get_run(tree.run_id).info.status == "FINISHED"
    assert "the run is not complete there (summary.json is not among the run's artifacts: " in said[-1]
    assert summary["tracking"]["fault"] is not None
    assert deliver.main([str(folder)]) == 0
    whole(config)


def test_the_file_of_an_error_keeps_no_trial_running(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(config, folder)
    tree = session.tree()
    assert tree is not None

    def broken(*arguments: Any) -> None:
        raise ConnectionError("no answer from the bucket")

    with monkeypatch.context() as patched:
        patched.setattr(tree.mlflow, "log_text", broken)
        session.writer.begin(trial(0))
        session.writer.end(TrialRecord(trial(0), "failed", error="Traceback\nValueError: a NUL: \0"))
        eventually(lambda: session.writer.delayed is not None)
        assert children(tree)["t0000"].info.status == "FAILED"
        assert session.writer.close(0.5) == 2
    assert deliver.main([str(folder)]) == 0
    run = children(tree)["t0000"]
    assert [item.path for item in tree.mlflow.list_artifacts(run.info.run_id)] == ["error.txt"]


def test_bad_input(folder: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        assert deliver.main(list(words)) == 2
        err = capsys.readouterr().err
        assert len(err.splitlines()) == 1, err
        return err

    assert "read nothing; folders of runs are wanted" in told()
    assert "read --all; folders of runs are wanted" in told("--all", str(folder))
    assert "is no run's folder: it has no config.toml" in told(str(tmp_path))
    with (folder.path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "another process works on this run" in told(str(folder))
    folder.write_run({"kind": "balance"})
    assert "a balance is logged to MLflow at its end alone" in told(str(folder))
    folder.write_run({"kind": "dance"})
    assert "kind: read 'dance'; allowed: sweep, train, balance" in told(str(folder))
    folder.run.write_text("{")
    assert "run.json: cannot be read (JSONDecodeError" in told(str(folder))


def test_of_several_folders_those_that_are_no_runs_are_left_out(
    config: SweepConfig, folder: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(config, folder).close(SUMMARY | {"tracking": {"uri": None, "run_id": None}}, interrupted=False)
    balance = RunDirectory.create(Path(config.runs_dir), "balance")
    balance.write_config(config, tmp_path, kind="balance")
    (Path(config.runs_dir) / "artifacts").mkdir()
    damaged = RunDirectory.create(Path(config.runs_dir), "damaged")
    damaged.write_config(config, tmp_path)
    everything = sorted(map(str, Path(config.runs_dir).iterdir()))
    assert deliver.main(everything) == 0
    damaged.run.write_text("{")
    assert deliver.main(everything) == 3
    out, err = capsys.readouterr()
    assert out.count(f"{folder}: all of it is in MLflow") == 2, "the others are delivered all the same"
    assert err.count("cannot be read") == 1
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_run_that_was_killed_while_it_waited_ends_as_it_was(
    config: SweepConfig, folder: RunDirectory, interrupted: bool
) -> None:
    session = begun(config, folder)
    folder.write_summary(SUMMARY | {"tracking": session.identity(interrupted=interrupted)})
    session.writer.close(30)
    assert deliver.main([str(folder)]) == 0
    tree = session.tree()
    assert tree is not None
    assert tree.mlflow.get_run(tree.run_id).info.status == ("KILLED" if interrupted else "FINISHED")


def test_a_run_that_was_killed_after_a_resume_does_not_end_as_it_had_ended_before(
    config: SweepConfig, folder: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    session = begun(config, folder)
    folder.write_summary(SUMMARY | {"tracking": session.identity(interrupted=False)})
    folder.begin_again()
    session.writer.close(30)
    assert deliver.main([str(folder)]) == 0
    assert "it has not ended: " in capsys.readouterr().out
    tree = session.tree()
    assert tree is not None
    assert tree.mlflow.get_run(tree.run_id).info.status == "RUNNING"


@pytest.mark.parametrize("is_late", [False, True])
def test_the_run_of_a_training_that_failed_stays_a_failed_one(
    config: SweepConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_late: bool,
) -> None:
    given = {"experiment": "a:b", "metric": "loss", "epochs": 2, "name": "t", "hyperparameters": {"lr": 0.1}}
    training = TrainConfig.model_validate(given | {"tracking": config.tracking.model_dump()})
    folder = RunDirectory.create(tmp_path / "runs", "t")
    folder.write_config(training, tmp_path, kind="train")
    folder.write_summary({"tracking": {"status": "interrupted"}})  # of an earlier start
    session = TrainSession(training, folder, open_store(training), cpus=CpuLimit(1.0))
    tree = session.tree()
    assert tree is not None
    monkeypatch.setattr(training_run, "FAILED_S", 1.0)
    with locked(config) if is_late else nullcontext():
        session.writer.run_metrics(1, {"loss": 1.0})
        TrainingRun._end_failed(cast(Any, SimpleNamespace(session=session, console=SimpleNamespace(line=print))))
    no_delivery_hangs()
    assert tree.mlflow.get_run(tree.run_id).info.status == ("RUNNING" if is_late else "FAILED")
    for _ in range(2):
        assert deliver.main([str(folder)]) == 0
        run = tree.mlflow.get_run(tree.run_id)
        assert (run.info.status, run.data.tags["raygpu.status"]) == ("FAILED", "failed")
        assert run.data.metrics["loss"] == 1.0
        assert f"{folder}: it has failed: raygpu train --resume {folder}" in capsys.readouterr().out


def with_records(folder: RunDirectory) -> None:
    """Write what a sweep of one trial leaves in its folder beside its summary."""
    record = TrialRecord(trial(0), "finished")
    trials_csv.write(folder.trials_csv, [record])
    timeline = Timeline(folder.timeline, "loss")
    timeline.epochs("t0000", [epoch(1, 1.0)])
    timeline.close()


def test_a_run_that_was_written_again_in_part_is_written_whole_the_next_time(
    config: SweepConfig, folder: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begun(config, folder)
    summary = work(session)
    with_records(folder)
    session.close(summary, interrupted=False)
    whole(config).mlflow.delete_run(summary["tracking"]["run_id"])

    def fail(*_: object) -> int:
        raise TrackingError("the store is away")

    with monkeypatch.context() as patch:
        patch.setattr("raygpu.tracking.rewriting.write_again", fail)
        assert deliver.main([str(folder)]) == 3
    assert deliver.main([str(folder)]) == 0
    tree = RunTree.open(config.tracking.uri, config.tracking.experiment)
    (found,) = tree.mlflow.search_runs([tree.experiment_id], "tags.`raygpu.kind` = 'sweep'")
    tree.run_id = found.info.run_id
    assert list(children(tree)) == ["t0000"]


@pytest.mark.parametrize("how", ["deleted", "another store"])
def test_a_run_that_the_store_has_lost_is_written_again_from_its_folder(
    how: str, config: SweepConfig, folder: RunDirectory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = begun(config, folder)
    summary = work(session)
    with_records(folder)
    session.close(summary, interrupted=False)
    lost = summary["tracking"]["run_id"]
    tree = whole(config)
    if how == "deleted":
        tree.mlflow.delete_run(lost)
    else:
        uri = f"sqlite:///{tmp_path}/other.db"
        config = config.model_copy(update={"tracking": config.tracking.model_copy(update={"uri": uri})})
    assert deliver.main([str(folder), "--tracking.uri", config.tracking.uri]) == 0
    assert f"the run {lost} is not in the store any more" in capsys.readouterr().out
    found = whole(config)
    assert found.run_id != lost
    assert folder.read_run()["mlflow_run_id"] == found.run_id
    run = children(found)["t0000"]
    assert run.data.params == {name: str(value) for name, value in trial(0).hyperparameters.items()}
    assert deliver.main([str(folder), "--tracking.uri", config.tracking.uri]) == 0
    assert "any more" not in capsys.readouterr().out
    whole(config)


def test_what_waits_for_a_lost_run_goes_to_the_new_one(config: SweepConfig, folder: RunDirectory) -> None:
    session = begun(config, folder)
    lost = session.tree()
    assert lost is not None
    assert lost.run_id is not None
    with locked(config):
        summary = work(session)
        with_records(folder)
        session.close(summary, interrupted=False)
    lost.mlflow.delete_run(lost.run_id)
    assert deliver.main([str(folder)]) == 0
    assert whole(config).run_id != lost.run_id
