"""Where the wall time went: the stages, and what the mean slot did while trials ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from raygpu.cli.report.time_figures import parts, slots, wall_time
from raygpu.records.run_data import RunData
from raygpu.records.timeline import Occupancy
from tests.report_cases import sweep


def stay(name: str, began_s: float, ended_s: float) -> Occupancy:
    """Return a stay of one trial with half of a GPU."""
    return Occupancy(name, (name,), 0, 0.5, began_s, ended_s, "complete")


@pytest.fixture
def run(tmp_path: Path) -> RunData:
    """Two slots for 20 s: one has trials for 16 s, the other for 12 s, both from second 2 on."""
    made = sweep(tmp_path / "run")
    made.timeline.starts[:] = [100.0]
    made.timeline.occupancies[:] = [stay("a", 102, 110), stay("b", 102, 114), stay("c", 112, 120)]
    return made


def test_a_stage_is_divided_by_what_the_mean_slot_did(run: RunData) -> None:
    found = slots(run, {"train": 16.0, "evaluation": 4.0, "imports": 1.0, "members": 1.0}, 20.0)
    assert found == pytest.approx(
        {"joining": 2.0, "train": 8.0, "evaluation": 2.0, "setup": 1.0, "held": 3.0, "empty": 4.0}
    )
    assert sum(found.values()) == pytest.approx(20.0), "the parts add up to the stage"


def test_trials_of_an_earlier_start_do_not_count(run: RunData) -> None:
    run.timeline.starts.append(111.0)
    found = slots(run, {"train": 4.0}, 10.0)
    assert found == pytest.approx({"joining": 1.0, "train": 4.0, "held": 4.0, "empty": 1.0})


def test_the_figure_has_the_stages_around_it(run: RunData) -> None:
    run = replace(run, summary=run.summary | {"workers_s": {"train": 16.0}, "stages_s": {"ray": 6.0, "trials": 20.0}})
    assert list(parts(run)) == ["ray", "joining", "train", "held", "empty"]
    figure = wall_time([run])
    assert figure is not None
    assert list(figure.plot.data[0].y) == [
        "wait for Ray", "start of workers", "training", "hand-over", "slots without a trial"
    ]  # fmt: skip
    assert figure.says.startswith("run: 31 % of 26 s for: training.")


def test_the_load_of_the_data_and_the_wait_for_samples_are_two_parts(run: RunData) -> None:
    stages = {"start": 1.0, "data": 60.0, "ray": 5.0, "trials": 20.0}
    run = replace(run, summary=run.summary | {"workers_s": {"train": 15.0, "data": 2.0}, "stages_s": stages})
    assert sum(parts(run).values()) == pytest.approx(sum(stages.values()))
    figure = wall_time([run])
    assert figure is not None
    seconds = dict(zip(figure.plot.data[0].y, figure.plot.data[0].x, strict=True))
    assert (seconds["experiment, data"], seconds["waiting for samples"]) == (60.0, 1.0)


def test_a_run_without_seconds_of_workers_has_its_stages_alone(tmp_path: Path) -> None:
    figure = wall_time([sweep(tmp_path / "run")])
    assert figure is not None
    assert figure.says == "run: 62 % of 20 s for: trials."


def test_a_code_of_ones_own_has_one_part_for_training_and_evaluation(run: RunData) -> None:
    assert slots(run, {"program": 20.0}, 20.0)["program"] == pytest.approx(10.0)
