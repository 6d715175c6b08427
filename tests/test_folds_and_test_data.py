"""A sweep by folds with test data, and a training of its winner, on a real Ray and a real MLflow store."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from experiments.digits import TestedMlp as Experiment
from raygpu import sweep
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trials import Trial

pytestmark = pytest.mark.timeout(900)
NUM_FOLDS = 3


def accuracy(folder: Path, trial_id: str, hidden: int) -> float:
    """The accuracy of a kept model on the test data, by hand."""
    import torch

    from raygpu.training.torch.models import trained_model

    data = Experiment().data()
    model = trained_model(Experiment(), Trial(trial_id, 0, {"hidden": hidden}), folder / "checkpoints" / trial_id)
    with torch.no_grad():
        found = model(torch.as_tensor(data.test_inputs)).argmax(dim=1).numpy()
    return float((found == np.asarray(data.test_targets)).mean())


def test_the_winners_models_are_scored_once_on_data_that_no_trial_saw(
    sweep_config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    config = sweep_config(
        experiment="experiments.digits:TestedMlp",
        metric="accuracy",
        direction=None,
        epochs=2,
        trials=2,
        folds=NUM_FOLDS,
        gpu={"mode": "fused", "fraction": 1.0},
        space={"lr": {"uniform": [0.05, 0.1]}, "hidden": 16},
    )
    result = sweep.run(config)
    printed = capsys.readouterr().out
    best, found = result.summary["best"], result.summary["test"]
    assert result.summary["completed"] == 2 * NUM_FOLDS
    assert {record.trial.fold for record in result.best} <= set(range(NUM_FOLDS))
    winner = best["trial_id"].partition("-")[0]
    names = [f"{winner}-{fold + 1}" for fold in range(NUM_FOLDS)]
    assert found["trial_ids"] == names
    assert found["num_samples"] == 360
    assert result.folder is not None
    own = [accuracy(result.folder, name, 16) for name in names]
    assert found["metrics"]["test/accuracy"] == pytest.approx(fmean(own), abs=1e-6)
    shared = (1 / NUM_FOLDS + 1 / (NUM_FOLDS - 1)) ** 0.5  # Nadeau and Bengio's: folds share most of their data
    assert found["standard_errors"]["test/accuracy"] == pytest.approx(stdev(own) * shared, abs=1e-6)
    line = next(line for line in printed.splitlines() if line.startswith("test accuracy"))
    assert line.endswith("(the mean of 3 models, of 360 samples never used by the search)")
    assert "1 array of 6 trials" in printed, "of all folds"
    source = tomllib.loads((result.folder / "best.toml").read_text())["source"]
    assert source["test/accuracy"] == found["metrics"]["test/accuracy"]
    run = MlflowClient(config.tracking.uri).get_run(result.summary["tracking"]["run_id"])
    assert run.data.metrics["test/accuracy"] == pytest.approx(found["metrics"]["test/accuracy"])
    assert "test accuracy" in (result.folder / "report.html").read_text()

    def fails(*_: Any, **__: Any) -> None:
        raise AssertionError("the test data is looked at twice")

    monkeypatch.setattr("raygpu.engines.tune.engine.scores_on_test", fails)
    again = sweep.run(sweep.resumed_config(RunDirectory(result.folder), {}), resume=RunDirectory(result.folder))
    assert again.summary["test"] == found
    assert json.loads((result.folder / "summary.json").read_text())["test"] == found
