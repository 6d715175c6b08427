"""A sweep that is read again from its folder: values in the space's own types, order of trials, damaged files."""

from __future__ import annotations

import datetime
import math
from pathlib import Path
from typing import Any

import pytest

from raygpu.api import _of_trial
from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records import trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import Status, TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.opened_run import SweepRun
from raygpu.workflow.summary import plain

DAY = datetime.date(2024, 1, 2)


def opened(folder: Path, space: dict[str, Any], *trials: tuple[int, Status, float, dict[str, Any]]) -> SweepRun:
    """Return a sweep with these trials, of which the first one is the best."""
    made = RunDirectory.create(folder, "night")
    values = {"experiment": "m:f", "trials": len(trials), "metric": "accuracy", "epochs": 1, "space": space}
    made.write_config(SweepConfig.model_validate(values), folder)
    records = [TrialRecord(Trial(Trial.name(i), i, hp), status, score, 1) for i, status, score, hp in trials]
    trials_csv.write(made.trials_csv, records)
    best = records[0].trial
    told = {name: plain(value) for name, value in best.hyperparameters.items()}
    first = {"trial_id": best.trial_id, "score": records[0].score, "hyperparameters": told}
    counts = dict.fromkeys(("num_trials", "completed", "stopped_early", "diverged", "failed"), 0)
    row = {"trial_id": best.trial_id, "values": [], "hyperparameters": told}
    made.write_summary({**counts, "best": first, "front": [row]})
    return SweepRun(made)


def test_trials_have_their_values_in_the_space_s_own_types(tmp_path: Path) -> None:
    space = {
        "act": {"choice": ["", "tanh"]}, "width": {"choice": [8, 16], "when": {"act": ""}},
        "code": {"choice": ["0x10"]}, "cap": {"choice": [math.inf, 1.0]}, "day": DAY, "last.lr": {"uniform": [0, 1]},
    }  # fmt: skip
    first = {"day": DAY, "act": "", "width": 16, "code": "0x10", "cap": math.inf, "last.lr": 0.5}
    second = {"day": DAY, "act": "tanh", "code": "0x10", "cap": 1.0, "last.lr": 0.25}
    run = opened(tmp_path, space, (0, "finished", 0.9, first), (1, "finished", 0.5, second))
    assert [trial.hyperparameters for trial in run.trials] == [first, second]
    assert run.best is not None
    assert (run.best.hyperparameters, run.front[0].hyperparameters) == (first, first)
    assert _of_trial(run.best)["hyperparameters"] == first


def test_a_sweep_that_goes_on_has_no_summary_of_its_end_before(tmp_path: Path) -> None:
    run = opened(tmp_path, {"x": 1}, (0, "finished", 0.9, {"x": 1}))
    run.directory.begin_again()
    with pytest.raises(BadInput, match="has not ended since it was resumed; go on with: raygpu sweep --resume"):
        run.best  # noqa: B018


def test_a_data_frame_keeps_texts_that_pandas_takes_for_missing(tmp_path: Path) -> None:
    texts = ["None", "NA", "null", "nan"]
    space = {"name": {"choice": texts}, "set": {"choice": texts}, "x": {"choice": [0.5, math.nan]}}
    trials = [{"name": text, "set": text, "x": math.nan} for text in texts] + [{"x": 0.5}]
    run = opened(tmp_path, space, *((i, "finished", math.nan if i else 0.5, each) for i, each in enumerate(trials)))
    frame = run.to_dataframe()
    assert frame["name"].tolist()[:4] == frame["space.set"].tolist()[:4] == texts
    assert frame["name"].isna().tolist() == [False] * 4 + [True]
    assert (frame["score"].dtype.kind, frame["x"].dtype.kind, frame["x"].isna().sum()) == ("f", "f", 4)


def test_trials_come_in_the_order_of_the_search_and_failed_ones_last_in_a_notebook(tmp_path: Path) -> None:
    x: dict[str, Any] = {"x": 1}
    trials: list[tuple[int, Status, float, dict[str, Any]]] = [
        (9998, "finished", 0.5, x), (10_000, "finished", 0.5, x), (3, "failed", 0.9, x), (4, "finished", 0.25, x),
    ]  # fmt: skip
    run = opened(tmp_path, {"x": 1}, *trials)
    assert [trial.trial_id for trial in run.trials] == ["t0003", "t0004", "t9998", "t10000"]
    table = run._repr_html_().partition("<table")[2]
    assert sorted(["t9998", "t10000", "t0004", "t0003"], key=table.index) == ["t9998", "t10000", "t0004", "t0003"]


@pytest.mark.parametrize("content", [b'id,status\nt0000,"finished\n', b"id\n\xff\xfe\n", b"", b"id,status\nt1,x,1,2\n"])
def test_a_damaged_table_is_one_line(tmp_path: Path, content: bytes) -> None:
    run = opened(tmp_path, {"x": 1}, (0, "finished", 0.9, {"x": 1}))
    run.directory.trials_csv.write_bytes(content)
    for read in (lambda: run.best, lambda: run.trials if content else run.best, lambda: repr(run), run._repr_html_):
        with pytest.raises(BadInput, match=r"trials.csv: .*; --resume writes it anew"):
            read()
    if content != b"id,status\nt1,x,1,2\n":  # pandas takes further cells for the names of rows
        with pytest.raises(BadInput, match=r"trials.csv: .*; --resume writes it anew"):
            run.to_dataframe()


def test_a_best_trial_without_a_row_is_one_line(tmp_path: Path) -> None:
    run = opened(tmp_path, {"x": 1}, (0, "finished", 0.9, {"x": 1}))
    trials_csv.write(run.directory.trials_csv, [])
    with pytest.raises(BadInput, match=r"trials.csv: no row of t0000, which summary.json names; --resume writes it"):
        run.front  # noqa: B018
    with pytest.raises(BadInput, match="no row of t0000"):
        run.best  # noqa: B018
