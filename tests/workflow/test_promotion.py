"""A trial is promoted by its sweep's folder or MLflow run: with its id, hyper-parameters and score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from raygpu.api import _start
from raygpu.config import SweepConfig, TrainConfig
from raygpu.config.sections import TrackingSection
from raygpu.errors import BadInput
from raygpu.records import trials_csv
from raygpu.records.best_trial import write_best
from raygpu.records.run_directory import RunDirectory
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.tracking import origins
from raygpu.tracking.values import as_params
from raygpu.workflow.opened_run import SweepRun, open_run
from raygpu.workflow.promotion import promoted, with_own_seed


@pytest.fixture
def folder(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path, "night")
    config = SweepConfig.model_validate({"experiment": "tests.cases:ramp", "trials": 1, "epochs": 1, "space": {"x": 1}})
    made.write_config(config, tmp_path)
    write_best(made, config, TrialRecord(Trial("t0000", 0, {"x": 1}), "finished"))
    return made


@pytest.mark.parametrize("trial_id", ["../../precious", "/tmp/precious", ".", "t0000/..", "t0000\\n", ""])
def test_a_path_in_place_of_an_id_is_refused(folder: RunDirectory, trial_id: str) -> None:
    precious = folder.path.parent / "precious"
    precious.mkdir()
    (precious / "file").touch()
    text = folder.best_toml.read_text().replace('"t0000"', f'"{trial_id}"')
    folder.best_toml.write_text(text)
    with pytest.raises(BadInput, match=r"best\.toml: source\.trial_id: read .*; allowed: a trial's id, as t0003"):
        promoted(str(folder.path), TrackingSection, True)
    with pytest.raises(BadInput, match="trial_id: read"):
        folder.checkpoint(trial_id)
    assert (precious / "file").exists()


def test_an_id_is_taken(folder: RunDirectory) -> None:
    (folder.checkpoints / "t0000").mkdir(parents=True)
    assert promoted(str(folder.path), TrackingSection, True).checkpoint == folder.checkpoints / "t0000"


def test_a_training_counts_its_epochs_as_the_sweep_did(folder: RunDirectory, tmp_path: Path) -> None:
    assert "data" not in promoted(str(folder.path), TrackingSection, False).values
    config = SweepConfig.model_validate(
        {
            "experiment": "tests.cases:ramp", "trials": 1, "epochs": 1, "space": {"x": 1},
            "data": {"samples_per_epoch": 500},
        }
    )  # fmt: skip
    folder.write_config(config, tmp_path)
    assert promoted(str(folder.path), TrackingSection, False).values["data"] == {"samples_per_epoch": 500}


def test_a_population_is_trained_from_python_as_by_the_command(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path, "night")
    config = SweepConfig.model_validate(
        {
            "experiment": "tests.cases:ramp", "trials": 2, "epochs": 4, "space": {"lr": {"uniform": [0.1, 1]}},
            "population": {"interval": 1}, "metric": "loss",
        }
    )  # fmt: skip
    made.write_config(config, tmp_path)
    records = [TrialRecord(Trial(f"t000{i}", i, {"lr": 0.1 + i}), "finished", score=0.5 + i) for i in range(2)]
    schedule = {"seed": 99, "hyperparameters": {"lr": 0.7}, "changes": [{"epoch": 3, "lr": 0.2}]}
    write_best(made, config, records[0], values=schedule)
    trials_csv.write(made.trials_csv, records)
    made.write_summary({"best": {"trial_id": "t0000", "score": 0.5, "hyperparameters": {"lr": 0.1}}})
    run = open_run(made.path)
    assert isinstance(run, SweepRun)
    assert run.best is not None
    wanted = promoted(str(made.path), TrackingSection, False).values
    for what in (run, run.best):
        values = _start(what, {}, None, TrainConfig).values
        assert {name: values[name] for name in schedule} == {name: wanted[name] for name in schedule} == schedule
    other = next(trial for trial in run.trials if trial.trial_id == "t0001")
    with pytest.raises(BadInput, match="t0001 belongs to a population, and only its best one's schedule is kept"):
        _start(other, {}, None, TrainConfig)


@pytest.mark.parametrize("text", ["", "source = 1", "[source]"])
def test_a_best_trial_without_an_id_is_refused(folder: RunDirectory, text: str) -> None:
    folder.best_toml.write_text(text)
    with pytest.raises(BadInput, match=r"source\.trial_id: read None"):
        promoted(str(folder.path), TrackingSection, False)


LONG = ["x" * 7000, "y" * 7000]
VALUES = {"kind": "", "a[0].width": 16, "a_0_.width": 8, "text": LONG[1], "code": "0x10", "nul": "a\0b"}
SPACE = {
    "kind": {"choice": ["", "b"]}, "a[1].width": {"choice": [1, 2], "when": {"kind": "b"}},
    "a[0].width": {"choice": [8, 16]}, "a_0_.width": {"choice": [8, 16]}, "text": {"choice": LONG},
    "code": {"choice": ["0x10", "0x20"]}, "nul": {"choice": ["a\0b", "c"]},
}  # fmt: skip


@pytest.mark.parametrize("name", ["acc@1", "validation/acc@1"])
def test_a_trial_of_mlflow_has_all_its_hyper_parameters_and_its_score(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """MLflow has other names for some of them and for the metric, and cuts and changes texts."""
    config = {
        "experiment": "tests.cases:ramp", "trials": 2, "epochs": 1, "metric": "acc@1", "direction": "max",
        "space": SPACE,
    }  # fmt: skip

    def origin(uri: str, experiment: str, run_id: str, folder: Path, **_: Any) -> origins.Origin:
        """Return the origin of a trial that is not the best."""
        (folder / "config.toml").write_text(tomli_w.dumps(config))
        metrics = {name.replace("@", "_"): 0.75, "train/loss": 0.5}
        return origins.Origin("night", "a" * 32, folder, "t0001", as_params(VALUES)[0], metrics, "halving", False)

    monkeypatch.setattr(origins, "origin", origin)
    values = promoted("b" * 32, TrackingSection, False).values
    assert values["hyperparameters"] == VALUES
    source = values["source"]
    assert (source["metric"], source["score"], source["ended"]) == ("acc@1", 0.75, "stopped early (halving)")


def test_a_damaged_summary_is_one_line(folder: RunDirectory) -> None:
    folder.best_toml.unlink()
    folder.summary.write_text('{"diverged": 1')
    with pytest.raises(BadInput, match=r"summary.json: cannot be read .*; --resume writes it anew"):
        promoted(str(folder.path), TrackingSection, False)


def test_a_best_trial_whose_file_was_lost_is_written_anew(folder: RunDirectory) -> None:
    folder.best_toml.unlink()
    folder.summary.write_text('{"best": {"trial_id": "t0000"}}')
    with pytest.raises(BadInput, match=r"has no best\.toml: it was lost; .* --resume .* writes it anew"):
        promoted(str(folder.path), TrackingSection, False)


def test_a_sweep_without_a_score_has_nothing_to_promote(tmp_path: Path) -> None:
    folder = RunDirectory(tmp_path)
    folder.config.write_text('name = "a"\nexperiment = "a:B"\ntrials = 1\n')
    folder.write_run({})
    with pytest.raises(BadInput, match=r"has no best\.toml: no trial of that sweep has ended with a score"):
        promoted(str(tmp_path), TrackingSection, False)


@pytest.mark.parametrize(("seed", "given"), [(41, 44), (None, 3), ("x", "x")])
def test_a_job_of_an_array_adds_its_index_to_the_trials_seed(seed: Any, given: Any) -> None:
    values = {"experiment": "m:M", **({} if seed is None else {"seed": seed})}
    variables = {"RAYGPU_SEED_OFFSET": "3"}
    assert with_own_seed(values, variables)["seed"] == given
    assert not variables  # what the training starts has seeds of its own
    assert with_own_seed(values, variables) == values
