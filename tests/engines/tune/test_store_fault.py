"""A tracking store that turns out not to open while the first trials run."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.errors import TrackingError
from raygpu.records.run_directory import RunDirectory
from raygpu.tracking.runs import RunTree

FAULT = "tracking: the store is of a later release"


def test_before_any_score_it_leaves_nothing(sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(uri: str, experiment: str) -> RunTree:
        raise TrackingError(FAULT)

    monkeypatch.setattr(RunTree, "open", fail)
    config = sweep_config(experiment="tests.cases:ramp", epochs=300, space={"x": 1, "pause_s": 0.1}, trials=2)
    with pytest.raises(TrackingError, match=f"^{FAULT}$"):
        sweep.run(config)
    assert list(Path(config.runs_dir).glob("*/")) == []


def test_after_the_first_score_the_sweep_can_go_on_and_mlflow_lacks_nothing(
    sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = sweep_config(experiment="tests.cases:ramp", epochs=20, space={"x": 1, "pause_s": 0.1}, trials=2)

    def fail(uri: str, experiment: str) -> RunTree:
        while not any("epochs" in path.read_text() for path in Path(config.runs_dir).glob("*/timeline.jsonl")):
            time.sleep(0.05)
        raise TrackingError(FAULT)

    with monkeypatch.context() as patched:
        patched.setattr(RunTree, "open", fail)
        with pytest.raises(TrackingError, match=f"{FAULT}; go on with: .*--resume"):
            sweep.run(config)
    (folder,) = Path(config.runs_dir).glob("*/")
    earlier = RunDirectory.existing(str(folder))
    result = sweep.run(earlier.read_config(), source_folder=earlier.source_folder, resume=earlier)
    assert result.summary["completed"] == 2
    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    query = f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    children = client.search_runs([parent.info.experiment_id], query)
    assert len(children) == 2
    for child in children:
        steps = [metric.step for metric in client.get_metric_history(child.info.run_id, "score")]
        assert steps == sorted(set(steps))
        assert steps[-1] == 20
