"""Whole sweeps of scripts that know nothing of raygpu: their text, their files, and what a person reads at the end."""

from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig, TrainConfig, load
from raygpu.sweep import SweepResult
from raygpu.workflow.opened_run import SweepRun, open_run

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[1]

CLASSIC = """
import argparse, os
parser = argparse.ArgumentParser(); parser.add_argument("--x", type=float); x = parser.parse_args().x
assert open("data/train.csv").read() == "rows"
for epoch in range(1, 4):
    for batch in range(3):
        print(f"Train Epoch: {epoch} [{batch}/3]\\tLoss: {x + batch}")
    print(f"\\nTest set: Average loss: {x / epoch:.4f}, Accuracy: {epoch}/3 ({x * epoch:.4f}%)\\n")
open("mnist_cnn.pt", "w").write(str(x))
print("by", os.environ["RAYGPU_SOURCE_FOLDER"])
"""
METRICS = {"loss": r"Average loss: (\S+),", "score": r"Accuracy: \S+ \((\S+)%\)"}


def run_told(config: SweepConfig, folder: Path) -> tuple[SweepResult, str]:
    shown = io.StringIO()
    result = sweep.run(config, source_folder=folder, console=SweepConsole(stream=shown))
    return result, " ".join(shown.getvalue().split())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "my project"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "train.csv").write_text("rows")
    (folder / "train.py").write_text(CLASSIC)
    (folder / "mnist_cnn.pt").write_text("of a run by hand")
    return folder


def test_a_classic_script_is_scored_by_its_text_and_its_best_files_are_kept(sweep_config: Any, project: Path) -> None:
    values = {"command": "python train.py --x {x}", "space": {"x": {"uniform": [1.0, 2.0]}}, "trials": 3}
    config = sweep_config(experiment=None, script={"metrics": METRICS}, runs_dir=str(project / "runs"), **values)
    result, shown = run_told(config, project)
    assert (result.exit_code, result.summary["completed"]) == (0, 3)
    assert result.folder is not None
    best = result.best[0]
    x = best.trial.hyperparameters["x"]
    assert best.epochs == 3
    assert best.metrics == {"loss": pytest.approx(x / 3, abs=1e-4), "score": pytest.approx(3 * x, abs=1e-4)}
    kept = [path.relative_to(result.folder / "trials") for path in (result.folder / "trials").rglob("*.pt")]
    assert kept == [Path(best.trial.trial_id, "files", "mnist_cnn.pt")]
    assert float((result.folder / "trials" / kept[0]).read_text()) == x
    assert (project / "mnist_cnn.pt").read_text() == "of a run by hand"
    assert not list((result.folder / "trials").rglob("work"))
    opened = open_run(result.folder)
    assert isinstance(opened, SweepRun)
    assert opened.best is not None
    assert opened.best.files == result.folder / "trials" / kept[0].parent
    assert f"by {project}" in (result.folder / "trials" / best.trial.trial_id / "output.txt").read_text()

    line = f"python train.py --x {x}"
    written = tomllib.loads((result.folder / "best.toml").read_text())
    assert written["source"]["command_line"] == line
    assert TrainConfig.model_validate(written).command == config.command
    assert f"the best trial, to run it again: {line}" in shown
    assert "trained again" not in shown
    client = MlflowClient(config.tracking.uri)
    run_id = result.summary["tracking"]["run_id"]
    written_files = f"best/files/{best.trial.trial_id}"
    assert [file.path for file in client.list_artifacts(run_id, written_files)] == [f"{written_files}/mnist_cnn.pt"]


@pytest.mark.slow
def test_a_script_whose_text_is_not_read_ends_the_sweep_early_and_says_what_to_do(
    sweep_config: Any, project: Path
) -> None:
    config = sweep_config(
        experiment=None,
        command="python train.py --x {x}",
        trials=20,
        gpu={"fraction": 0.5},
        tracking={"enabled": False},
    )
    result, shown = run_told(config, project)
    assert result.exit_code == 1
    assert 3 <= result.summary["failed"] < 20
    assert "stopped: the first trials have all failed alike (no metric was found: its output ends with" in shown
    assert "give it [script] metrics = { accuracy = 'Accuracy: ([0-9.]+)' }, print lines of JSON" in shown


@pytest.mark.slow
def test_the_shipped_classic_script_is_scored(sweep_config: Any) -> None:
    given = load(ROOT / "conf/sweep/classic_script.toml", {}, SweepConfig)
    values = {name: getattr(given, name) for name in ("command", "metric", "space", "epochs")}
    config = sweep_config(experiment=None, script=given.script.model_dump(), tracking={"enabled": False}, **values)
    result, _ = run_told(config, ROOT)
    assert result.summary["completed"] == 2
    assert result.folder is not None
    assert set(result.best[0].metrics) == {"loss", "accuracy"}
    assert result.best[0].metrics["accuracy"] > 20
    assert len(list((result.folder / "trials").rglob("digits.pt"))) == 1
    assert not (ROOT / "digits.pt").exists()
