from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from raygpu.errors import TrackingError
from raygpu.search.trial_record import Status, TrialRecord
from raygpu.search.trials import EpochResult
from raygpu.tracking import presentation
from raygpu.tracking.presentation import TrialsView
from raygpu.tracking.runs import Refused, RunTree
from raygpu.tracking.values import MetricValue, points
from tests.tracking.services import Server, end_trial, epoch, log_epochs, restart_trial, start_trial, trial

STATUSES: dict[Status, str] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "interrupted": "KILLED",
}


def run(tree: RunTree, run_id: str) -> Any:
    return tree.mlflow.get_run(run_id)


def steps(tree: RunTree, run_id: str, metric: str) -> list[int]:
    return [point.step for point in tree.mlflow.get_metric_history(run_id, metric)]


def test_a_trial_is_a_named_child_with_its_parameters_and_metrics(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(3, lr=0.1, shape=(1, 2)))
    log_epochs(tree, 3, [epoch(1), epoch(2)])
    child = run(tree, run_id)
    assert child.info.run_name == "t0003"
    assert child.info.status == "RUNNING"
    assert child.data.tags["mlflow.parentRunId"] == tree.run_id
    assert (child.data.tags["raygpu.kind"], child.data.tags["raygpu.trial_id"]) == ("trial", "t0003")
    assert child.data.params == {"lr": "0.1", "shape": "(1, 2)"}
    assert child.data.metrics == {"train/loss": 0.5, "validation/accuracy": 0.9, "samples_per_s": 2000.0}
    assert steps(tree, run_id, "train/loss") == [1, 2]
    parent = run(tree, tree.run_id or "")
    assert (parent.data.tags["raygpu.kind"], parent.data.tags["raygpu.name"]) == ("sweep", "sweep")
    assert (parent.data.tags["purpose"], parent.data.params) == ("test", {"trials": "3"})


@pytest.mark.parametrize(("status", "expected"), STATUSES.items())
def test_every_ending_has_its_status(tree: RunTree, status: Status, expected: str) -> None:
    run_id = start_trial(tree, trial(0))
    error = "Traceback\n" + "x" * 9000 + "\nValueError: the end" if status == "failed" else None
    end_trial(tree, TrialRecord(trial(0), status, error=error, reason="rung 2" if status == "stopped" else None))
    ended = run(tree, run_id)
    assert ended.info.status == expected
    assert ended.info.end_time is not None
    assert ended.data.tags["raygpu.status"] == status
    assert ended.data.tags.get("raygpu.stopped") == {"stopped": "rung 2", "interrupted": "interrupted"}.get(status)
    if error:
        assert len(ended.data.tags["raygpu.error"]) == 8000
        assert ended.data.tags["raygpu.error"].endswith("ValueError: the end")
        file = tree.mlflow.download_artifacts(run_id, "error.txt")
        assert Path(file).read_text() == error
    else:
        assert "raygpu.error" not in ended.data.tags


def test_a_diverged_trial_keeps_what_the_store_can_hold(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(0))
    log_epochs(tree, 0, [EpochResult(1, {"nan": math.nan, "up": math.inf, "down": -math.inf, "text": "x"})])  # type: ignore[dict-item]
    end_trial(tree, TrialRecord(trial(0), "finished", diverged=True))
    ended = run(tree, run_id)
    assert math.isnan(ended.data.metrics["nan"])
    assert ended.data.metrics["up"] > 1e308
    assert ended.data.metrics["down"] < -1e308
    assert ended.info.status == "FINISHED"
    assert (ended.data.tags["raygpu.diverged"], ended.data.tags["raygpu.status"]) == ("true", "diverged")


def test_more_than_one_call_can_hold(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(0, **{f"p{index}": "x" * 7000 for index in range(250)}))
    results = [EpochResult(number, {f"m{index}": 1.0 for index in range(250)}) for number in range(1, 11)]
    log_epochs(tree, 0, results)
    tree.log(run_id, tags={f"tag{index}": "y" * 9000 for index in range(150)})
    data = run(tree, run_id).data
    assert len(data.params) == 250
    assert {len(value) for value in data.params.values()} == {6000}
    assert len(data.metrics) == 250
    assert steps(tree, run_id, "m249") == list(range(1, 11))
    assert sum(name.startswith("tag") for name in data.tags) == 150


def test_names_that_mlflow_refuses_are_made_to_fit(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(0, **{"lr@start": 1, "../up": 2}))
    metrics = {"acc@1": 0.5, "/a//b/": 1.0, "x" * 300: 2.0}
    tree.log(run_id, [MetricValue(name, value, step=7, time_ms=1000500) for name, value in metrics.items()])
    data = run(tree, run_id).data
    assert data.params == {"lr_start": "1", "up": "2"}
    assert set(data.metrics) == {"acc_1", "a/b", "x" * 250}
    assert [(p.step, p.timestamp) for p in tree.mlflow.get_metric_history(run_id, "a/b")] == [(7, 1000500)]


def test_artifacts_lie_beside_the_database(tree: RunTree, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "report.html").write_text("<p>")
    assert tree.run_id
    tree.log_artifact(tree.run_id, tmp_path / "made" / "report.html")
    tree.log_artifact(tree.run_id, tmp_path / "made", "folder")
    found = {path.relative_to(tmp_path / "artifacts" / tree.run_id) for path in tmp_path.glob("artifacts/*/**/*.html")}
    assert found == {Path("artifacts/report.html"), Path("artifacts/folder/report.html")}


def test_a_sweep_is_resumed_with_its_trials(tree: RunTree) -> None:
    assert tree.run_id
    ids = [start_trial(tree, trial(index)) for index in range(3)]
    log_epochs(tree, 0, [epoch(1), epoch(2), epoch(3)])
    end_trial(tree, TrialRecord(trial(0), "interrupted"))
    log_epochs(tree, 1, [epoch(1)])
    tree.end_run(tree.run_id, "interrupted")
    assert run(tree, tree.run_id).info.status == "KILLED"
    other = RunTree(tree.mlflow, tree.uri, tree.experiment_id)
    other.start_run("another", {}, {})
    start_trial(other, trial(0))

    again = RunTree.open(tree.uri, "digits")
    found = again.resume_run(tree.run_id)
    assert {name: (child.run_id, child.last_epoch) for name, child in found.items()} == {
        "t0000": (ids[0], 3),
        "t0001": (ids[1], 1),
        "t0002": (ids[2], 0),
    }
    resumed = run(again, tree.run_id)
    assert resumed.info.status == "RUNNING"
    assert not {"raygpu.stopped", "raygpu.status"} & set(resumed.data.tags)
    assert start_trial(again, trial(0)) == ids[0]
    going = run(again, ids[0])
    assert going.info.status == "RUNNING"
    assert "raygpu.stopped" not in going.data.tags
    again.end_run(tree.run_id, "finished")
    ended = run(again, tree.run_id)
    assert (ended.info.status, ended.data.tags["raygpu.status"]) == ("FINISHED", "finished")
    assert "raygpu.stopped" not in ended.data.tags


def test_the_last_results_count_even_if_the_clock_was_set_back(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tree.run_id
    tree.end_run(tree.run_id, "finished", {"best/score": 0.5, "test/loss": 0.2})
    again = RunTree.open(tree.uri, "digits")
    monkeypatch.setattr("raygpu.tracking.runs._now_ms", lambda: 1_000_000)
    again.resume_run(tree.run_id)
    again.end_run(tree.run_id, "finished", {"best/score": 0.4, "test/loss": 0.1})
    assert run(again, tree.run_id).data.metrics == {"best/score": 0.4, "test/loss": 0.1}


def test_of_two_runs_of_one_trial_the_one_that_got_further_stays(tree: RunTree) -> None:
    assert tree.run_id
    behind = start_trial(tree, trial(0))
    tree.children.clear()
    further = start_trial(tree, trial(0))
    log_epochs(tree, 0, [epoch(1)])
    assert tree.resume_run(tree.run_id)["t0000"].run_id == further
    assert run(tree, behind).info.lifecycle_stage == "deleted"
    assert run(tree, further).info.lifecycle_stage == "active"


def test_no_trial_is_lost_where_a_twin_is_deleted(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages go by the number of runs before them."""
    assert tree.run_id
    for index in range(6):
        start_trial(tree, trial(index))
    tree.children.clear()
    start_trial(tree, trial(5))
    search = tree.mlflow.search_runs
    monkeypatch.setattr(
        tree.mlflow,
        "search_runs",
        lambda ids, query, view, max_results, page_token: search(ids, query, view, 2, page_token=page_token),
    )
    assert sorted(tree.resume_run(tree.run_id)) == [f"t{index:04d}" for index in range(6)]


def test_a_run_that_is_found_goes_on_with_other_parameters(tree: RunTree) -> None:
    begun = tree.start_run("sweep", {}, {"trials": 64}, key="abc")
    assert tree.start_run("sweep", {}, {"trials": 128}, key="abc") == begun
    assert run(tree, begun).data.params == {"trials": "64"}
    with pytest.raises(Refused):
        tree.log(begun, params={"trials": 128})


def test_a_trial_that_starts_over_has_one_new_run(tree: RunTree) -> None:
    old = start_trial(tree, trial(0))
    tree.mlflow.delete_run(old)  # by a person, meanwhile
    new = restart_trial(tree, trial(0))
    newer = restart_trial(tree, trial(0))
    assert [run(tree, run_id).info.lifecycle_stage for run_id in (old, new, newer)] == ["deleted", "deleted", "active"]
    assert tree.children["t0000"].run_id == newer


def test_the_sweep_ends_with_its_results(tree: RunTree) -> None:
    assert tree.run_id
    tree.end_run(tree.run_id, "finished", {"best/score": 0.9}, {"raygpu.best": "t0001"})
    parent = run(tree, tree.run_id)
    assert (parent.info.status, parent.data.metrics) == ("FINISHED", {"best/score": 0.9})
    assert (parent.data.tags["raygpu.best"], parent.data.tags["raygpu.status"]) == ("t0001", "finished")


def test_a_discarded_sweep_leaves_nothing(tree: RunTree) -> None:
    assert tree.run_id
    ids = [tree.run_id, start_trial(tree, trial(0)), start_trial(tree, trial(1))]
    tree.discard_run()
    assert {run(tree, run_id).info.lifecycle_stage for run_id in ids} == {"deleted"}


def test_where_to_look(tree: RunTree) -> None:
    training = "?workflowType=machine_learning"
    assert tree.ui_url == f"http://127.0.0.1:5000/#/experiments/{tree.experiment_id}/runs/{tree.run_id}{training}"
    served = RunTree(None, "https://me:secret@host/mlflow/", "7")
    assert served.ui_url == f"https://host/mlflow/#/experiments/7/runs{training}"
    assert tree.trials_url == tree.ui_url


VIEW = TrialsView("validation/accuracy", True, ["lr", "hidden"])


def test_trials_are_named_by_what_varies_and_have_a_table_of_their_own(tree: RunTree) -> None:
    assert tree.run_id is not None
    tree.share_view(tree.run_id, VIEW)
    named = run(tree, start_trial(tree, trial(6, lr=0.2743, hidden=256, batch_size=32)))
    assert named.info.run_name == "t0006 lr=0.274 hidden=256"
    assert tree.trials_url.endswith(f"/runs?workflowType=machine_learning&viewStateShareKey=raygpu-{tree.run_id}")
    tags = tree.mlflow.get_experiment(tree.experiment_id).tags
    state = json.loads(tags[f"mlflow.sharedViewState.raygpu-{tree.run_id}"])
    assert (state["orderByKey"], state["orderByAsc"]) == ("metrics.`validation/accuracy`", False)
    found = tree.mlflow.search_runs(
        [tree.experiment_id], state["searchFilter"], order_by=[f"{state['orderByKey']} DESC"]
    )
    assert [each.info.run_id for each in found] == [named.info.run_id]
    tree.discard_run()
    assert "mlflow.sharedViewState" not in str(tree.mlflow.get_experiment(tree.experiment_id).tags)


def test_the_oldest_tables_are_forgotten(tree: RunTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presentation, "MOST", 2)
    for number in range(4):
        tree.share_view(f"run{number}", VIEW)
    tags = tree.mlflow.get_experiment(tree.experiment_id).tags
    assert sorted(name for name in tags if "raygpu-run" in name) == [presentation.tag(f"run{i}") for i in (2, 3)]


def test_a_description_leaves_what_a_person_has_written(tree: RunTree) -> None:
    run_id = str(tree.run_id)
    tree.describe(run_id, "It runs.")
    written = run(tree, run_id).data.tags["mlflow.note.content"]
    assert written == f"It runs.\n\n{presentation.LAST_LINE}"
    tree.mlflow.set_tag(run_id, "mlflow.note.content", f"{written}\n\nMine.")
    tree.describe(run_id, "It has ended.")
    assert run(tree, run_id).data.tags["mlflow.note.content"] == (f"It has ended.\n\n{presentation.LAST_LINE}\n\nMine.")


def test_a_relative_file_stays_where_it_was(
    mlflow_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    shutil.copy(mlflow_template, tmp_path / "runs" / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    opened = RunTree.open("sqlite:///runs/mlflow.db", "digits")
    monkeypatch.chdir("/")
    opened.start_run("sweep", {}, {})
    assert opened.uri == f"sqlite:///{tmp_path}/runs/mlflow.db"
    location = opened.mlflow.get_experiment(opened.experiment_id).artifact_location
    assert location == f"file://{tmp_path}/runs/artifacts"
    assert not Path("/runs").exists()


def test_an_old_schema_and_other_files_are_one_line(sqlite_uri: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be looked at as one" * 20)
    with pytest.raises(TrackingError, match="file is not a database") as refused:
        RunTree.open(f"sqlite:///{tmp_path}/notes.txt", "digits")
    assert "\n" not in str(refused.value)
    tree = RunTree.open(sqlite_uri, "digits")
    tree.mlflow.delete_experiment(tree.experiment_id)
    with pytest.raises(TrackingError, match=r"tracking.experiment: read 'digits', which was deleted"):
        RunTree.open(sqlite_uri, "digits")


def test_a_deleted_run_is_refused(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(0))
    tree.mlflow.delete_run(run_id)
    with pytest.raises(Refused, match="active") as refused:
        tree.log(run_id, points(epoch(1), 0))
    assert "\n" not in str(refused.value)


def test_two_processes_may_open_a_new_store_together(tree: RunTree, tmp_path: Path) -> None:
    uri, context = f"sqlite:///{tmp_path}/new/mlflow.db", multiprocessing.get_context("fork")  # MLflow is imported here
    answers = context.Queue()
    processes = [context.Process(target=_open, args=(uri, answers)) for _ in range(2)]
    for process in processes:
        process.start()
    said = [answers.get(timeout=100) for _ in processes]
    for process in processes:
        process.join()
    assert said == ["1", "1"]


def _open(uri: str, answers: Any) -> None:
    try:
        answers.put(RunTree.open(uri, "digits").experiment_id)
    except BaseException as error:
        answers.put(repr(error))
        raise


def test_creating_a_store_is_silent(tmp_path: Path, capfd: pytest.CaptureFixture[str], tree: RunTree) -> None:
    # The template is made when the fixtures are: what it printed is in the first test's output, so look at the log's
    # own threshold, and at what opening prints.
    import logging

    capfd.readouterr()
    RunTree.open(tree.uri, "another")
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("mlflow.store.db.utils").isEnabledFor(logging.ERROR)
    assert not logging.getLogger("alembic.runtime.migration").isEnabledFor(logging.INFO)


def test_the_same_through_a_server(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tree = RunTree.open(server.uri, "served")
    parent = tree.start_run("sweep", {}, {"trials": 1})
    run_id = start_trial(tree, trial(0))
    log_epochs(tree, 0, [epoch(1), EpochResult(2, {"nan": math.nan, "up": math.inf})])
    end_trial(tree, TrialRecord(trial(0), "failed", error="Traceback"))
    tree.end_run(parent, "failed")
    ended = run(tree, run_id)
    assert ended.info.status == "FAILED"
    assert math.isnan(ended.data.metrics["nan"])
    assert ended.data.metrics["up"] > 1e308
    assert [file.path for file in tree.mlflow.list_artifacts(run_id)] == ["error.txt"]
    assert tree.ui_url.startswith(f"{server.uri}/#/experiments/{tree.experiment_id}/runs/{parent}?")
    assert RunTree.open(server.uri, "served").resume_run(parent)["t0000"].last_epoch == 2
    with urllib.request.urlopen(f"{server.uri}/api/2.0/mlflow/runs/get?run_id={parent}") as response:
        assert json.load(response)["run"]["info"]["run_name"] == "sweep"
    assert capfd.readouterr() == ("", "")


def test_the_same_in_postgresql(postgresql: str) -> None:
    wrong = postgresql.replace("s3cret-word", "an0ther-word")
    with pytest.raises(TrackingError, match="password authentication failed") as refused:
        RunTree.open(wrong, "digits")
    assert "an0ther" not in str(refused.value)
    assert "\n" not in str(refused.value)
    tree = RunTree.open(postgresql, "digits")
    parent = tree.start_run("sweep", {}, {})
    run_id = start_trial(tree, trial(0))
    log_epochs(tree, 0, [epoch(1), EpochResult(2, {"nan": math.nan, "up": math.inf})])
    end_trial(tree, TrialRecord(trial(0), "stopped", reason="median"))
    ended = run(tree, run_id)
    assert (ended.info.status, ended.data.tags["raygpu.stopped"]) == ("KILLED", "median")
    assert math.isnan(ended.data.metrics["nan"])
    assert tree.resume_run(parent)["t0000"].last_epoch == 2


def test_no_parameter_is_lost_or_cut_in_silence(tree: RunTree) -> None:
    assert tree.run_id is not None
    tree.log(tree.run_id, params={"a?b": 1, "a!b": 2, "long": "x" * 7000, "nul": "a\0b", "half": "\ud800"})
    params = tree.mlflow.get_run(tree.run_id).data.params
    assert (params["a_b"], params["a_b_2"]) == ("1", "2")
    assert len(params["long"]) == 6000
    assert (params["nul"], params["half"]) == (r"a\x00b", r"\ud800")
    assert tree.notes == [
        "MLflow: the parameter a?b is called a_b there",
        "MLflow: the parameter a!b is called a_b_2 there",
        "MLflow: the parameter long is cut to its first 6,000 of 7,000 characters",
    ]


def test_metrics_that_mlflow_would_not_tell_apart_stay_apart(tree: RunTree) -> None:
    assert tree.run_id is not None
    for step in (1, 2):
        values = {"recall@5": 0.5, "recall#5": 0.7}
        tree.log(tree.run_id, [MetricValue(name, value, step, step) for name, value in values.items()])
    assert run(tree, tree.run_id).data.metrics == {"recall_5": 0.5, "recall_5_2": 0.7}
    assert steps(tree, tree.run_id, "recall_5_2") == [1, 2]
    assert tree.notes == ["MLflow: the metric recall#5 is called recall_5_2 there"]


def test_a_trial_that_failed_is_not_called_diverged(tree: RunTree) -> None:
    run_id = start_trial(tree, trial(0))
    end_trial(tree, TrialRecord(trial(0), "failed", diverged=True, error="Traceback"))
    tags = run(tree, run_id).data.tags
    assert (tags["raygpu.status"], tags["raygpu.diverged"]) == ("failed", "true")
