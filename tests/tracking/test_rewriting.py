"""What a run that is written again knows of its trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.records import trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.records.timeline import Timeline
from raygpu.search.repeats import Repetition
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import EpochResult, Trial
from raygpu.tracking.rewriting import replace_lost, write_again
from raygpu.tracking.runs import RunTree
from raygpu.tracking.session import SweepSession, open_store
from raygpu.tracking.values import MetricValue
from raygpu.tracking.writer import CpuLimit
from tests.tracking.services import children
from tests.tracking.services import trial as numbered


@pytest.mark.parametrize(("repeats", "folds"), [(1, None), (2, None), (1, 3), (2, 3)])
def test_each_trial_has_its_tags_of_repeat_and_fold(
    repeats: int, folds: int | None, new_store: Callable[[Path], str], tmp_path: Path
) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "a:b", "metric": "loss", "trials": 1, "repeats": repeats, "folds": folds, "space": {"x": 1}}
    )
    repetition, drawn = Repetition.of(config), Trial("t0000", 0, {"x": 1})
    trials = [repetition.training(drawn, number, config.seed) for number in range(repetition.per_set)]
    trials = [drawn] if repetition.is_single else trials
    folder = RunDirectory.create(tmp_path / "runs", "night")
    folder.write_config(config, tmp_path)
    trials_csv.write(folder.trials_csv, [TrialRecord(trial, "finished") for trial in trials])
    found = []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        tree = RunTree.open(new_store(tmp_path / name), "raygpu")
        tree.start_run("night", {}, {}, "sweep", name)
        if name == "first":
            for trial in trials:
                tree.create_trial(trial)
        else:
            assert write_again(tree, folder, config) == len(trials)
        names = ("raygpu.repeat", "raygpu.fold", "raygpu.set")
        runs = {each: run.data.tags for each, run in children(tree).items()}
        found.append({each: [tags.get(name) for name in names] for each, tags in runs.items()})
    assert found[0] == found[1]
    assert sorted(found[0]) == [trial.trial_id for trial in trials]


@pytest.mark.parametrize("last", [1, 3])
def test_the_trials_of_a_deleted_parent_run_are_kept_and_completed(last: int, tree: RunTree, tmp_path: Path) -> None:
    """MLflow's delete_run deletes the parent alone."""
    config = SweepConfig.model_validate({"experiment": "a:b", "metric": "score", "trials": 3, "space": {"x": 1}})
    folder = RunDirectory.create(tmp_path / "runs", "night")
    folder.write_config(config, tmp_path)
    trials = [Trial(Trial.name(index), index, {"x": 0.123456789}) for index in range(3)]
    trials_csv.write(folder.trials_csv, [TrialRecord(trial, "finished") for trial in trials])
    timeline = Timeline(folder.timeline, "score")
    for trial in trials:
        timeline.epochs(trial.trial_id, [EpochResult(epoch, {"score": epoch / 7}) for epoch in (1, 2, 3)])
    timeline.close()
    assert tree.run_id is not None
    lost, run_ids = tree.run_id, [tree.create_trial(trial) for trial in trials[:2]]
    for run_id, epochs in zip(run_ids, (3, last), strict=True):
        points = [MetricValue(name, epoch / 7, epoch, 1000 * epoch) for epoch in range(1, epochs + 1) for name in "ab"]
        tree.log(run_id, points, trials[0].hyperparameters, {"raygpu.status": "finished"})
    tree.finish(run_ids[0], "finished", 4000)
    tree.mlflow.delete_run(lost)
    again = RunTree.open(tree.uri, "digits")
    begun = again.start_run("night", {}, {})
    again.adopt_trials(lost, begun)
    again.resume_run(begun)
    line = replace_lost(again, folder, config, lost)
    assert "the runs of 2 trials belong to it now, and 1 trials written again" in line
    runs = children(again)
    assert [runs[trial.trial_id].info.run_id for trial in trials[:2]] == run_ids
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert runs["t0000"].info.end_time == 4000
    steps = {
        (name, trial_id): [point.step for point in again.mlflow.get_metric_history(run.info.run_id, name)]
        for trial_id, run in runs.items()
        for name in ("a", "score")
    }
    assert steps == {
        ("a", "t0000"): [1, 2, 3], ("score", "t0000"): [],
        ("a", "t0001"): list(range(1, last + 1)), ("score", "t0001"): list(range(last + 1, 4)),
        ("a", "t0002"): [], ("score", "t0002"): [1, 2, 3],
    }  # fmt: skip
    assert {name: child.last_epoch for name, child in again.children.items()} == dict.fromkeys(runs, 3)


def test_runs_that_are_taken_over_are_progress(
    new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {"experiment": "a:b", "metric": "score", "trials": 8, "space": {"x": 1}}
    config = SweepConfig.model_validate({**values, "tracking": {"uri": new_store(tmp_path)}})
    folder = RunDirectory.create(tmp_path / "runs", "night")
    folder.write_config(config, tmp_path)
    first = SweepSession(config, folder, open_store(config), cpus=CpuLimit(1.0))
    for index in range(8):
        first.writer.begin(numbered(index))
    assert first.writer.close(60) == 0
    lost = first.writer.ready(0)
    lost.mlflow.delete_run(lost.run_id)

    tree = open_store(config)
    assert tree is not None
    set_tag = tree.mlflow.set_tag
    monkeypatch.setattr(tree.mlflow, "set_tag", lambda *tag: time.sleep(0.5) or set_tag(*tag))
    again = SweepSession(config, folder, tree, cpus=CpuLimit(1.0))
    again.writer.end(TrialRecord(numbered(0), "finished"))
    assert again.writer.close(2) == 0
    assert len(children(tree)) == 8
