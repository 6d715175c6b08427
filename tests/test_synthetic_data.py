"""`--data.synthetic`: made-up data instead of the experiment's own, and called so wherever its results are shown."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from raygpu import Splits, TorchExperiment, sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records.run_directory import RunDirectory
from raygpu.workflow.user_code import find, problem
from raygpu.workflow.validation import prepare
from tests.models import few


class Without(TorchExperiment):
    """No made-up data."""

    def data(self) -> Splits:
        return few()

    def model(self, hp: Any) -> Any:
        from torch import nn

        return nn.Linear(64, 10)


class OutOfReach(Without):
    """Made-up data alone."""

    def data(self) -> Splits:
        raise ConnectionError("no network")

    def synthetic(self) -> Splits:
        return few()


class Failing(Without):
    def synthetic(self) -> Splits:
        raise MemoryError("too much")


class Wrong(Without):
    def synthetic(self) -> Any:
        return [1, 2]


@pytest.fixture
def found(tmp_path: Path) -> Callable[..., Any]:
    """What a sweep's start makes of an experiment."""

    def load(experiment: str | None, *, synthetic: bool = True, **values: Any) -> Any:
        defaults: dict[str, Any] = {"trials": 2, "epochs": 1, "space": {"lr": 0.1}, "runs_dir": str(tmp_path)}
        config = SweepConfig.model_validate(
            defaults | {"experiment": experiment, "data": {"synthetic": synthetic}} | values
        )
        prepared = prepare(config, "test")
        return problem(prepared, *find(prepared.config, Path.cwd()))

    return load


def test_data_is_not_asked_for(found: Any) -> None:
    assert found("tests.test_synthetic_data:OutOfReach").splits.num_train == few().num_train
    with pytest.raises(BadInput, match=r"data\(\) failed: ConnectionError: no network"):
        found("tests.test_synthetic_data:OutOfReach", synthetic=False)


def test_a_part_of_it(found: Any) -> None:
    half = found("tests.test_synthetic_data:OutOfReach", data={"synthetic": True, "fraction": 0.5}).splits
    assert half.num_train == few().num_train / 2


@pytest.mark.parametrize(
    ("experiment", "values", "message"),
    [
        (
            "tests.test_synthetic_data:Without",
            {},
            "data.synthetic: read true; tests.test_synthetic_data:Without has no made-up data",
        ),
        ("tests.cases:ramp", {}, "data.synthetic: read true; a function loads its own data"),
        (None, {"command": "python train.py"}, "data.synthetic: read true; a command loads its own data"),
        ("tests.test_synthetic_data:Failing", {}, "synthetic() failed: MemoryError: too much"),
        ("tests.test_synthetic_data:Wrong", {}, "synthetic() returned list, not Splits"),
    ],
)
def test_one_line_where_there_is_none(found: Any, experiment: str | None, values: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        found(experiment, **values)
    (line,) = caught.value.faults
    assert message in line
    assert "\n" not in line


def test_a_flag(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """As a person types it, down to the plan."""
    root = Path(__file__).parents[1]
    arguments = [str(root / "conf/sweep/digits.toml"), "--data.synthetic", "--dry-run", "--runs-dir", str(tmp_path)]
    assert sweep.main(arguments) == 0
    _, second, *_ = capsys.readouterr().out.splitlines()
    assert second == "data: synthetic, made up to measure speed; the scores mean nothing"
    assert sweep.main([*arguments, "--no-data.synthetic"]) == 0
    assert "synthetic" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_results_say_so_everywhere(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="experiments.digits:Mlp",
        epochs=2,
        metric="accuracy",
        space={"lr": {"loguniform": [1e-2, 1.0]}, "hidden": 8},
        data={"synthetic": True},
    )
    shown = io.StringIO()
    result = sweep.run(config, console=SweepConsole(stream=shown))
    lines = shown.getvalue().splitlines()
    assert "data: synthetic, made up to measure speed; the scores mean nothing" in lines[:3]
    table = next(place for place, line in enumerate(lines) if line.startswith("trial "))
    assert lines[table + 3] == "on synthetic data: these scores mean nothing", "below the best trials"
    assert any("| best on synthetic data 0." in line for line in lines)
    assert result.summary["data"] == "synthetic"
    assert result.folder is not None
    assert json.loads((result.folder / "summary.json").read_text()) == result.summary
    assert tomllib.loads((result.folder / "best.toml").read_text())["source"]["data"] == "synthetic"
    assert (result.folder / "best/architecture.txt").is_file()
    assert not (result.folder / "best/predictions.csv").exists()
    assert result.summary["best"]["score"] < 0.3, "ten classes, nothing to be learnt"

    client = MlflowClient(config.tracking.uri)
    parent = client.get_run(result.summary["tracking"]["run_id"])
    assert parent.data.tags["raygpu.data"] == "synthetic"
    assert parent.data.params["data.synthetic"] == "True"
    tagged = client.search_runs([parent.info.experiment_id], "tags.`raygpu.data` = 'synthetic'")
    assert len(tagged) == 3, "the sweep and both trials"

    folder = RunDirectory.existing(result.folder)
    again = sweep.run(folder.read_config(), resume=folder, console=SweepConsole(stream=io.StringIO()))
    assert again.summary["data"] == "synthetic"
