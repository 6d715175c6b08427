"""A sweep or a training that goes on has the state's version and the fixed fields of its start, or is refused before
Ray starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from raygpu import train
from raygpu.config import SweepConfig, TrainConfig
from raygpu.errors import BadInput
from raygpu.records import slurm_job
from raygpu.records.run_directory import RunDirectory
from raygpu.records.slurm_job import SlurmJob
from raygpu.search.samplers import DrawnTrials, sampler
from raygpu.search.space import parse
from raygpu.sweep import resumed_config
from raygpu.workflow.resumed_runs import (
    STATE,
    VERSION,
    begun_sets,
    begun_sweep,
    begun_training,
    in_the_time_left,
    write_changes,
)

CONFIG = {
    "experiment": "tests.cases:ramp",
    "metric": "loss",
    "trials": 4,
    "search": {"algorithm": "tpe"},
    "stopping": {"patience": 3},
    "space": {"x": {"uniform": [0.0, 1.0]}, "y": {"choice": ["a", "b"]}},
}


@pytest.fixture
def begun(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory.create(tmp_path, "sweep")
    folder.write_config(SweepConfig.model_validate(CONFIG), tmp_path)
    folder.write_run(begun_sweep(folder))
    return folder


def test_as_it_began_and_with_what_may_change_it_goes_on(begun: RunDirectory) -> None:
    assert resumed_config(begun, {}).trials == 4
    assert resumed_config(begun, {"trials": "8", "time_budget_s": "60"}).trials == 8
    text = begun.config.read_text()
    for before, after in (("fail_fast = true", "fail_fast = false"), ("checkpoint_s = 60.0", "checkpoint_s = 5.0")):
        assert before in text
        begun.config.write_text(text.replace(before, after))
        resumed_config(begun, {})


def test_fewer_trials_than_at_the_last_start_are_refused_of_the_file_too(begun: RunDirectory) -> None:
    text = begun.config.read_text()
    begun.config.write_text(text.replace("trials = 4", "trials = 3"))
    with pytest.raises(BadInput, match="read 3; the sweep has 4, and can have more"):
        resumed_config(begun, {})
    begun.config.write_text(text)
    write_changes(begun, resumed_config(begun, {"trials": "8"}))
    begun.config.write_text(text)
    with pytest.raises(BadInput, match="read 4; the sweep has 8, and can have more"):
        resumed_config(begun, {})


def test_repeats_that_the_file_lacks_now_are_refused(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    folder.write_config(SweepConfig.model_validate({**CONFIG, "repeats": 3, "stopping": {}}), tmp_path)
    folder.write_run(begun_sweep(folder))
    for fewer in (2, 1):
        text = folder.config.read_text()
        folder.config.write_text(text.replace("repeats = 3", f"repeats = {fewer}"))
        with pytest.raises(BadInput, match=f"--repeats: read {fewer}; the sweep has 3, and can have more"):
            resumed_config(folder, {})
        folder.config.write_text(text)


def test_racing_stays_as_it_was(tmp_path: Path) -> None:
    """The state has it: it would be ignored, or draw trial by trial what is raced in generations."""
    folder = RunDirectory.create(tmp_path, "sweep")
    config = SweepConfig.model_validate({**CONFIG, "repeats": 8, "racing": True, "stopping": {}})
    folder.write_config(config, tmp_path)
    folder.write_run(begun_sweep(folder))
    assert resumed_config(folder, {"repeats": "10"}).racing
    folder.config.write_text(folder.config.read_text().replace("racing = true", "racing = false"))
    with pytest.raises(BadInput, match="racing: read false; the sweep began with true; set it back, or begin a new"):
        resumed_config(folder, {})


def test_a_choice_in_place_of_auto_is_no_change(begun: RunDirectory) -> None:
    begun.write_run({"gpu": {"mode": "fused", "fraction": 0.5}})
    assert resumed_config(begun, {}).gpu.mode == "fused"


def test_a_sweep_goes_on_on_other_gpus_by_an_edit(tmp_path: Path) -> None:
    folder = RunDirectory.create(tmp_path, "sweep")
    gpu = {"devices": "GPU-8a1b", "memory_limit": True}
    folder.write_config(SweepConfig.model_validate({**CONFIG, "gpu": gpu}), tmp_path)
    folder.write_run({"gpu": {**folder.read_config().gpu.model_dump(), "fraction": 0.5}, **begun_sweep(folder)})
    text = folder.config.read_text()
    assert "memory_limit = true" in text
    text = text.replace('devices = "GPU-8a1b"', 'devices = "0"').replace("memory_limit = true", "memory_limit = false")
    folder.config.write_text(text)
    now = resumed_config(folder, {}).gpu
    assert (now.devices, now.memory_limit, now.fraction) == ("0", False, 0.5)


@pytest.mark.parametrize("algorithm", ["qmc", "grid", "random"])
def test_the_trials_of_the_run_s_own_file_are_those_of_the_start(algorithm: str, tmp_path: Path) -> None:
    """TOML has the values of a table before its tables, so constants come first there."""
    kind = "choice" if algorithm != "qmc" else "uniform"
    space = {
        "a": {kind: [1, 2], "when": {"flag": True}},
        "n": 5,
        "b": {kind: [3, 4]},
        "flag": True,
        "c": {kind: [0, 1]},
    }
    config = SweepConfig.model_validate({**CONFIG, "search": {"algorithm": algorithm}, "space": space, "trials": 8})
    folder = RunDirectory.create(tmp_path, "sweep")
    folder.write_config(config, tmp_path)
    again = folder.read_config()
    assert list(again.space) != list(config.space)
    before, after = (sampler(each, parse(each.space, algorithm)) for each in (config, again))
    assert isinstance(after, DrawnTrials)
    after.extend(cast(DrawnTrials, before))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('metric = "loss"', 'metric = "accuracy"', 'metric: read "accuracy"; the sweep began with "loss"'),
        ("seed = 0", "seed = 5", "seed: read 5; the sweep began with 0"),
        ("start_best = 5", "start_best = 3", "start_best: read 3; the sweep began with 5"),
        ('precision = "float32"', 'precision = "bf16"', 'gpu.precision: read "bf16"; the sweep began with "float32"'),
        ('fraction = "auto"', "fraction = 0.5", 'gpu.fraction: read 0.5; the sweep began with "auto"'),
        ("patience = 3", "patience = 2", "stopping.patience: read 2; the sweep began with 3"),
        ("    1.0,", "    2.0,", r"space.x.uniform: read \[0.0, 2.0\]; the sweep began with \[0.0, 1.0\]"),
        ('"tests.cases:ramp"', '"tests.cases:other"', 'experiment: read "tests.cases:other"; the sweep began with'),
        ('algorithm = "tpe"', 'algorithm = "random"', 'search.algorithm: read "random"; the sweep began with "tpe"'),
    ],
)
def test_a_field_that_cannot_change_is_refused_by_name(before: str, after: str, said: str, begun: RunDirectory) -> None:
    text = begun.config.read_text()
    assert before in text
    begun.config.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match=said):
        resumed_config(begun, {})
    begun.config.write_text(text)
    resumed_config(begun, {})


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            "--lr 0.1",
            "--lr 0.2",
            'command: read "python train.py --lr 0.2"; the sweep began with "python train.py --lr',
        ),
        ("loss: ", "mean: ", r'script.metrics.loss: read "mean: .*"; the sweep began with "loss: '),
        ("[script.metrics]", '[script.metrics]\nerror = "e: ([0-9.]+)"', "script.metrics.error: .* began with nothing"),
    ],
)
def test_another_command_and_other_metrics_of_its_output_are_refused(
    before: str, after: str, said: str, tmp_path: Path
) -> None:
    script = {"command": "python train.py --lr 0.1", "script": {"metrics": {"loss": "loss: ([0-9.]+)"}}}
    folder = RunDirectory.create(tmp_path, "sweep")
    folder.write_config(SweepConfig.model_validate({**CONFIG, "experiment": None, **script}), tmp_path)
    folder.write_run(begun_sweep(folder))
    resumed_config(folder, {})
    text = folder.config.read_text()
    assert before in text
    folder.config.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match=said):
        resumed_config(folder, {})


def test_the_number_of_sets_at_the_start_is_noted(begun: RunDirectory, tmp_path: Path) -> None:
    begun.change_config({"trials": 8})
    assert begun_sets(begun) == 4
    another = RunDirectory.create(tmp_path / "other", "sweep")
    another.write_config(SweepConfig.model_validate(CONFIG), tmp_path)
    assert begun_sets(another) is None, "it has not begun yet"


def test_the_state_of_another_version_is_refused_in_a_line(begun: RunDirectory) -> None:
    begun.write_run({VERSION: STATE - 1})
    resumed_config(begun, {})  # it has no state yet
    (begun.path / "tune").mkdir()
    (begun.path / "tune" / "experiment_state-2026-01-01_00-00-00.json").touch()
    with pytest.raises(BadInput, match=r"another version of raygpu began it, .* begin a new sweep"):
        resumed_config(begun, {})


def test_the_experiment_s_folder_may_have_been_moved(begun: RunDirectory) -> None:
    config = {**CONFIG, "experiment": "/before/cases.py:ramp"}
    begun.write_config(SweepConfig.model_validate(config), begun.path)
    begun.write_run(begun_sweep(begun))
    text = begun.config.read_text()
    begun.config.write_text(text.replace("/before/", "/now/"))
    assert resumed_config(begun, {}).experiment == "/now/cases.py:ramp"
    begun.config.write_text(text.replace("cases.py:ramp", "cases.py:other"))
    with pytest.raises(BadInput, match="the sweep began with"):
        resumed_config(begun, {})


@pytest.mark.parametrize(("used_s", "left_s"), [(0.0, 6000.0), (4000.0, 2000.0), (6010.0, 1.0)])
def test_the_starts_of_a_slurm_job_share_one_time_budget(
    used_s: float, left_s: float, begun: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is nowhere written, so that each further start, and `for as long again`, have the whole in view."""
    begun.change_config({"time_budget_s": 6000.0})
    SlurmJob("sweep-a", "sweep", "7", str(begun.path), 0.0, seconds=500 + used_s, seconds_before=500).write()
    config = begun.read_config()
    assert in_the_time_left(begun, config).time_budget_s == 6000.0, "no job runs here"
    monkeypatch.setenv(slurm_job.VARIABLE, str(begun.path))
    start = in_the_time_left(begun, config)
    assert start.time_budget_s == left_s
    write_changes(begun, start)
    assert begun.read_config().time_budget_s == 6000.0


TRAINING = {
    "name": "mine",
    "experiment": "tests.train_cases:Small",
    "epochs": 4,
    "metric": "loss",
    "accumulate": 2,
    "hyperparameters": {"lr": 0.1, "batch_size": 16},
}


@pytest.fixture
def begun_train(tmp_path: Path) -> RunDirectory:
    folder = RunDirectory.create(tmp_path, "mine")
    folder.write_config(TrainConfig.model_validate(TRAINING), tmp_path, kind="train")
    folder.write_run(begun_training(folder))
    return folder


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[TrainConfig]:
    """The configurations that trainings went on with; nothing is trained."""
    taken: list[TrainConfig] = []

    def run(config: TrainConfig, **options: Any) -> train.TrainingResult:
        """Note the configuration."""
        taken.append(config)
        return train.TrainingResult({}, None, False)

    monkeypatch.setattr(train, "run", run)
    return taken


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('metric = "loss"', 'metric = "accuracy"', 'metric: read "accuracy"; the training began with "loss"'),
        ('metric = "loss"', 'metric = "loss"\ndirection = "max"', 'direction: read "max"; the training began with'),
        ("seed = 0", "seed = 5", "seed: read 5; the training began with 0"),
        ("fraction = 1.0", "fraction = 0.5", "data.fraction: read 0.5; the training began with 1.0"),
        ("accumulate = 2", "accumulate = 1", "accumulate: read 1; the training began with 2"),
        ("accumulate = 2", "accumulate = 2\nglobal_batch = 9", "global_batch: read 9; the training began with nothing"),
        ("batch_size = 16", "batch_size = 8", "hyperparameters.batch_size: read 8; the training began with 16"),
        ("batch_size = 16", "", "hyperparameters.batch_size: read nothing; the training began with 16"),
        ("cases:Small", "cases:Named", 'experiment: read "tests.train_cases:Named"; the training began with'),
    ],
)
def test_a_field_of_a_training_that_cannot_change_is_refused_in_a_line(
    before: str,
    after: str,
    said: str,
    begun_train: RunDirectory,
    resumed: list[TrainConfig],
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = begun_train.config.read_text()
    assert before in text
    begun_train.config.write_text(text.replace(before, after))
    assert train.main(["--resume", str(begun_train.path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "set it back, or begin a new training" in err
    assert len(err.splitlines()) == 1
    assert not resumed


def test_a_training_goes_on_as_it_began_and_with_what_may_change(
    begun_train: RunDirectory, resumed: list[TrainConfig]
) -> None:
    assert train.main(["--resume", str(begun_train.path)]) == 0
    text = begun_train.config.read_text()
    for before, after in (("epochs = 4", "epochs = 8"), ("lr = 0.1", "lr = 0.01\nmicro_batch_size = 4")):
        assert before in text
        begun_train.config.write_text(text.replace(before, after))
        assert train.main(["--resume", str(begun_train.path)]) == 0
    assert [config.epochs for config in resumed] == [4, 8, 4]


def test_a_training_of_another_version_is_refused_in_a_line(
    begun_train: RunDirectory, resumed: list[TrainConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    begun_train.write_run({VERSION: None})
    assert train.main(["--resume", str(begun_train.path)]) == 0, "it has no checkpoint yet"
    (begun_train.checkpoints / "training" / "checkpoint_1").mkdir(parents=True)
    assert train.main(["--resume", str(begun_train.path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "another version of raygpu began it, whose state this one cannot read" in line
    assert "begin a new training" in line
    assert len(resumed) == 1


def test_smaller_parts_of_the_noted_batch_go_on(begun_train: RunDirectory, resumed: list[TrainConfig]) -> None:
    """A resume takes the noted batch, on fewer devices too, where each has a larger share."""
    begun_train.write_run({"global_batch": 32})
    begun_train.config.write_text(begun_train.config.read_text().replace("accumulate = 2", "accumulate = 8"))
    assert train.main(["--resume", str(begun_train.path)]) == 0
    assert [config.accumulate for config in resumed] == [8]
