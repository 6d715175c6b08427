"""A sweep that goes on has the state's version and the fixed fields of its start, or is refused before Ray starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.experiment import Splits
from raygpu.records import slurm_job
from raygpu.records.run_directory import RunDirectory
from raygpu.records.slurm_job import SlurmJob
from raygpu.sweep import resumed_config
from raygpu.workflow.resumed_sweep import (
    OTHER_DATA,
    STATE,
    VERSION,
    begun_sets,
    begun_state,
    compared_data,
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
    folder.write_run(begun_state(folder))
    return folder


def test_as_it_began_and_with_what_may_change_it_goes_on(begun: RunDirectory) -> None:
    assert resumed_config(begun, {}).trials == 4
    assert resumed_config(begun, {"trials": "8", "time_budget_s": "60"}).trials == 8
    text = begun.config.read_text()
    for before, after in (("fail_fast = true", "fail_fast = false"), ("checkpoint_s = 60.0", "checkpoint_s = 5.0")):
        assert before in text
        begun.config.write_text(text.replace(before, after))
        resumed_config(begun, {})


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ('metric = "loss"', 'metric = "accuracy"', 'metric: read "accuracy"; the sweep began with "loss"'),
        ("seed = 0", "seed = 5", "seed: read 5; the sweep began with 0"),
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
    folder.write_run(begun_state(folder))
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
    another.write_run({VERSION: STATE})
    assert begun_sets(another) == 4, "an earlier commit began it"


def test_other_validation_data_than_at_the_start_are_told(begun: RunDirectory) -> None:
    def splits(seed: int, samples: int = 100) -> Splits:
        x = np.random.default_rng(seed).normal(size=(samples, 4)).astype(np.float32)
        return Splits.of(x, (x[:, 0] > 0).astype(np.int64), validation=0.2)

    assert compared_data(begun, None) == []
    assert compared_data(begun, splits(0)) == compared_data(begun, splits(0)) == []
    assert compared_data(begun, splits(1)) == compared_data(begun, splits(0, 101)) == [OTHER_DATA]
    assert compared_data(begun, splits(0)) == []


def test_the_state_of_another_version_is_refused_in_a_line(begun: RunDirectory) -> None:
    begun.write_run({VERSION: 1})
    resumed_config(begun, {})  # it has no state yet
    (begun.path / "tune").mkdir()
    (begun.path / "tune" / "experiment_state-2026-01-01_00-00-00.json").touch()
    with pytest.raises(BadInput, match=r"another version of raygpu began it, .* begin a new sweep"):
        resumed_config(begun, {})


def test_the_experiment_s_folder_may_have_been_moved(begun: RunDirectory) -> None:
    config = {**CONFIG, "experiment": "/before/cases.py:ramp"}
    begun.write_config(SweepConfig.model_validate(config), begun.path)
    begun.write_run(begun_state(begun))
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
