"""Whole sweeps with repeats, on a real Ray and a real MLflow store."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.records.run_directory import RunDirectory
from raygpu.search.space import trial_seed
from raygpu.workflow.opened_run import as_trial, open_run
from raygpu.workflow.promotion import promoted

pytestmark = pytest.mark.timeout(900)


def rows(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def test_a_set_that_lacks_a_repeat_is_not_the_best_until_it_is_trained_again(
    sweep_config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seeds = [trial_seed(0, number) for number in range(3)]
    space = {"x": {"grid_search": [1, 2, 3]}, "bad_seeds": {"constant": seeds[1:2]}, "mended": str(tmp_path / "mended")}
    config = sweep_config(
        experiment="tests.cases:noisy", trials=None, repeats=3, epochs=2, search={"algorithm": "grid"}, space=space
    )
    result = sweep.run(config)
    summary, folder = result.summary, result.folder
    assert folder is not None
    assert result.exit_code == 0
    assert (summary["num_trials"], summary["num_sets"], summary["complete_sets"], summary["failed"]) == (9, 3, 2, 1)
    best = summary["best"]
    assert (best["set_id"], best["repeats"], best["score"]) == ("t0001", 3, pytest.approx(fmean(best["scores"])))
    assert [row["set"] for row in rows(folder, "sets.csv")] == ["t0001", "t0000", "t0002"]
    trials = rows(folder, "trials.csv")
    assert [(row["id"], row["set"], row["repeat"]) for row in trials[3:6]] == [
        (f"t0001-{number}", "t0001", str(number)) for number in (1, 2, 3)
    ]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["t0001-1", "t0001-2", "t0001-3"]
    told = capsys.readouterr().out
    assert "t0001 is better than the other complete set (paired t-test over 3 repeats" in told
    assert "1 set lacks repeats and ranks below the complete ones: 1 failed; of these, a better mean has t0002" in told

    _check_runs(config, summary)
    values = tomllib.loads((folder / "best.toml").read_text())
    assert values["source"]["score"] == pytest.approx(best["score"])
    assert (values["source"]["set_id"], values["source"]["repeats"]) == ("t0001", 3)
    assert values["seed"] == seeds[int(best["trial_id"][-1]) - 1]
    assert promoted(str(folder), lambda: config.tracking, True).checkpoint == folder / "checkpoints" / best["trial_id"]

    run = open_run(folder)
    assert run.best.score == pytest.approx(best["score"])
    assert run.best.standard_error == pytest.approx(best["standard_error"])
    assert run.best.load_model() == as_trial(run.best).seed == values["seed"]
    assert list(run.to_dataframe(sets=True)["set"]) == ["t0001", "t0000", "t0002"]

    (tmp_path / "mended").touch()
    earlier = RunDirectory.existing(folder)
    again = sweep.run(
        sweep.resumed_config(earlier, {"repeats": "4"}), source_folder=Path.cwd(), resume=earlier, retry_failed=True
    )
    assert again.summary["best"]["set_id"] == "t0002"
    assert (again.summary["complete_sets"], again.summary["num_trials"], again.summary["failed"]) == (3, 12, 0)
    assert again.summary["comparison"]["alike"] == []


def _check_runs(config: Any, summary: dict[str, Any]) -> None:
    """The trainings' runs have the tag of their set, and the mean of its scores."""
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(summary["tracking"]["run_id"])
    assert parent.data.metrics["best/score"] == pytest.approx(summary["best"]["score"])
    assert parent.data.tags["raygpu.best_set"] == "t0001"
    own = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}' and tags.`raygpu.set` = 't0001'"
    runs = client.search_runs([parent.info.experiment_id], own)
    assert sorted(run.data.tags["raygpu.repeat"] for run in runs) == ["1", "2", "3"]
    assert {run.data.metrics["set/score"] for run in runs} == {summary["best"]["score"]}


def test_halving_screens_sets_by_their_first_training_and_what_is_left_out_is_not_missing(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.cases:ramp",
        trials=8,
        repeats=3,
        epochs=4,
        space={"x": {"uniform": [0.0, 1.0]}},
        stopping={"algorithm": "halving", "grace_epochs": 1, "reduction": 2},
    )
    result = sweep.run(config)
    summary, folder = result.summary, result.folder
    assert folder is not None
    assert result.exit_code == 0
    assert summary["stopped_early"] > 0
    assert summary["left_out"] == 2 * summary["stopped_early"]
    assert summary["num_trials"] == 24 - summary["left_out"]
    trials = rows(folder, "trials.csv")
    assert {row["repeat"] for row in trials if row["status"] == "stopped"} == {"1"}
    assert {row["epochs"] for row in trials if row["repeat"] != "1"} == {"4"}
    assert {row["status"] for row in rows(folder, "sets.csv")} == {"complete", "stopped"}
