"""What a run that is written again knows of its trials."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from raygpu.config import SweepConfig
from raygpu.records import trials_csv
from raygpu.records.run_directory import RunDirectory
from raygpu.search.repeats import Repetition
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.tracking.rewriting import write_again
from raygpu.tracking.runs import RunTree
from tests.tracking.services import children


@pytest.mark.parametrize(("repeats", "folds"), [(1, None), (2, None), (1, 3), (2, 3)])
def test_each_trial_has_its_tags_of_repeat_and_fold(
    repeats: int, folds: int | None, new_store: Callable[[Path], str], tmp_path: Path
) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "a:b", "metric": "loss", "trials": 1, "repeats": repeats, "folds": folds, "space": {"x": 1}}
    )
    repetition, drawn = Repetition.of(config), Trial("t0000", 0, {"x": 1})
    trials = [repetition.training(drawn, number, config.seed) for number in range(repetition.per_set)]
    trials = [drawn] if repetition.is_single else trials
    folder = RunDirectory.create(tmp_path / "runs", "night")
    folder.write_config(config, tmp_path)
    trials_csv.write(folder.trials_csv, [TrialRecord(trial, "finished") for trial in trials])
    found = []
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        tree = RunTree.open(new_store(tmp_path / name), "raygpu")
        tree.start_run("night", {}, {}, "sweep", name)
        if name == "first":
            for trial in trials:
                tree.create_trial(trial)
        else:
            assert write_again(tree, folder, config) == len(trials)
        names = ("raygpu.repeat", "raygpu.fold", "raygpu.set")
        runs = {each: run.data.tags for each, run in children(tree).items()}
        found.append({each: [tags.get(name) for name in names] for each, tags in runs.items()})
    assert found[0] == found[1]
    assert sorted(found[0]) == [trial.trial_id for trial in trials]
