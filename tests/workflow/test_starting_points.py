"""The best sets of an earlier sweep, read from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.errors import BadInput
from raygpu.records import sets_csv, trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.records.set_records import ranked_sets
from raygpu.search.repeats import Repetition
from raygpu.search.samplers import sampler
from raygpu.search.space import parse
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.workflow.starting_points import with_earlier_best

SETS: list[tuple[float | None, dict[str, Any]]] = [
    (0.8, {"lr": 0.1, "name": "1"}),
    (0.9, {"lr": 0.5, "name": "1"}),
    (None, {"lr": 0.2, "name": "1"}),
    (0.95, {"lr": 50.0, "name": "1"}),
    (0.9, {"lr": 0.5, "name": "1"}),
    (0.7, {"lr": 0.3, "name": "two"}),
]


def config_of(**values: Any) -> SweepConfig:
    space = {"lr": {"uniform": [0, 100]}, "name": {"choice": ["1", "two"]}}
    given = {"experiment": "m:f", "trials": 6, "metric": "accuracy", "direction": "max", "space": space}
    return SweepConfig.model_validate(given | values)


@pytest.fixture
def earlier(tmp_path: Path) -> str:
    folder = RunDirectory.create(tmp_path, "earlier")
    folder.write_config(config_of(), tmp_path)
    records = [
        TrialRecord(Trial(Trial.name(i), 0, values), "finished" if score else "failed", score)
        for i, (score, values) in enumerate(SETS)
    ]
    trials_csv.write(folder.trials_csv, records)
    return str(folder.path)


SPACE = {"lr": {"uniform": [0, 1]}, "name": {"choice": ["1", "two"]}, "new": {"uniform": [0, 1]}}


def test_the_best_that_fit_come_after_those_of_the_file(earlier: str) -> None:
    """t0003 lies outside, t0004 is the same as t0001, and t0002 has no score; the text "1" stays text."""
    config = config_of(space=SPACE, start_from=earlier, start_best=2, start=[{"new": 0.5}])
    found, lines = with_earlier_best(config, parse(SPACE))
    assert found.start == ({"new": 0.5}, {"lr": 0.5, "name": "1"}, {"lr": 0.1, "name": "1"})
    assert lines == ["start: tried first: the 2 best sets of earlier by accuracy that fit [space]: t0001, t0000"]


def test_of_the_earlier_sets_as_many_are_tried_as_there_are_trials_for(earlier: str) -> None:
    """Three of them fit [space]."""

    def tried(**values: Any) -> list[Any]:
        config, _ = with_earlier_best(config_of(space=SPACE, start_from=earlier, **values), parse(SPACE))
        search = sampler(config, parse(SPACE))
        return [trial.hyperparameters["lr"] for trial in iter(search.next, None)]

    best = {"lr": 0.5, "name": "1"}
    assert tried(trials=4)[:3] == [0.5, 0.1, 0.3]
    assert tried(trials=2) == [0.5, 0.1]
    assert tried(trials=2, start=[{"lr": 0.75}]) == [0.75, 0.5]
    assert tried(trials=2, start=[best]) == [0.5, 0.1], "a set that is in the file, too, takes one place"
    assert tried(trials=3, start=[best], start_best=3) == [0.5, 0.1, 0.3]
    with pytest.raises(BadInput, match="start_best: read 3; trials = 2 has place for 1 of them beside"):
        tried(trials=2, start=[{"lr": 0.75}], start_best=3)
    with pytest.raises(BadInput, match=r"start_from: .*: trials = 1 has no place for its sets beside"):
        tried(trials=1, start=[{"lr": 0.75}])
    with pytest.raises(BadInput, match="start: read 2 sets; trials = 1 has no place for all of them"):
        tried(trials=1, start=[{"lr": 0.75}, {"lr": 0.25}])


def test_a_sweep_that_minimizes_begins_with_the_lowest(earlier: str) -> None:
    folder = RunDirectory.existing(earlier)
    folder.change_config({"direction": "min"})
    found, _ = with_earlier_best(config_of(space=SPACE, start_from=earlier, start_best=1), parse(SPACE))
    assert found.start == ({"lr": 0.3, "name": "two"},)


def test_without_a_folder_nothing_changes() -> None:
    config = config_of()
    assert with_earlier_best(config, parse(config.space)) == (config, [])


def test_no_fitting_set_and_no_sweep_are_refused_in_a_line(earlier: str, tmp_path: Path) -> None:
    space = {"lr": {"uniform": [200, 300]}}
    with pytest.raises(BadInput, match="no set of its 5 trials fits this"):
        with_earlier_best(config_of(space=space, start_from=earlier), parse(space))
    with pytest.raises(BadInput, match=r"start_from: .* is no sweep's folder"):
        with_earlier_best(config_of(start_from=str(tmp_path)), parse(SPACE))


def test_sets_with_repeats_are_ranked_by_their_means_and_not_by_a_lucky_one(earlier: str) -> None:
    scores = {"t0000": (0.99, 0.5), "t0001": (0.8, 0.8)}
    records = [
        TrialRecord(
            Trial(Trial.repeat_name(name, i), i, {"lr": 0.1 + int(name[-1]), "name": "1"}, repeat=i), "finished", score
        )
        for name, both in scores.items()
        for i, score in enumerate(both)
    ]
    folder = RunDirectory.existing(earlier)
    trials_csv.write(folder.trials_csv, records)
    sets_csv.write(folder.sets_csv, ranked_sets(records, Repetition(2), maximize=True))
    wide = {**SPACE, "lr": {"uniform": [0, 2]}}
    found, lines = with_earlier_best(config_of(space=wide, start_from=earlier, start_best=1), parse(wide))
    assert found.start == ({"lr": 1.1, "name": "1"},)
    assert lines[0].endswith("t0001")


def test_a_population_is_refused(earlier: str) -> None:
    RunDirectory.existing(earlier).change_config({"epochs": 4, "population": {"interval": 1}})
    with pytest.raises(BadInput, match="is a population, whose scores are those of values that changed"):
        with_earlier_best(config_of(space=SPACE, start_from=earlier), parse(SPACE))
