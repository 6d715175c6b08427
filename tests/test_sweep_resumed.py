"""Whole sweeps that go on, on a real Ray: what is trained is what the records say."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.records.run_data import RunData
from raygpu.records.run_directory import RESUMED_AT, RunDirectory

pytestmark = pytest.mark.timeout(600)


def trained(folder: Path) -> dict[str, tuple[float, float]]:
    """Return `x` and the score of each trial by its id, as `trials.csv` has them."""
    with (folder / "trials.csv").open() as file:
        return {row["id"]: (float(row["x"]), float(row["score"])) for row in csv.DictReader(file)}


def goes_on(folder: Path, **changes: str) -> dict[str, tuple[float, float]]:
    earlier = RunDirectory.existing(folder)
    sweep.run(sweep.resumed_config(earlier, changes), resume=earlier, console=SweepConsole(stream=io.StringIO()))
    return trained(folder)


@pytest.mark.slow
def test_a_sampled_grid_that_goes_on_to_the_whole_one_trains_what_it_records(sweep_config: Any) -> None:
    config = sweep_config(
        experiment="tests.cases:ramp",
        trials=2,
        epochs=1,
        space={"x": {"grid_search": [1, 2, 3, 4, 5]}},
        search={"algorithm": "grid"},
        tracking={"enabled": False},
    )
    folder = sweep.run(config, console=SweepConsole(stream=io.StringIO())).folder
    assert folder is not None
    sample = trained(folder)
    more = goes_on(folder, trials="4")
    assert more.items() >= sample.items()
    whole = goes_on(folder, trials="9")
    assert whole.items() >= more.items()
    assert sorted(whole.values()) == [(x, x) for x in range(1, 6)], "of `ramp`, x is the score of one epoch"
    assert goes_on(folder) == whole
    ended = RunData.load(RunDirectory.existing(folder))
    assert (ended.ended, RESUMED_AT in ended.summary, len(ended.timeline.starts)) == (True, False, 4)
