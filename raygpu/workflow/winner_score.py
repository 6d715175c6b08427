"""Score a sweep's winner, and a production model, on the test data: once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raygpu.errors import RaygpuError, one_line
from raygpu.experiment import Splits, num_samples
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.trial_records import Records
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import Storage

Models = Mapping[str, tuple[Trial, str]]
"""Trials and the URIs of their checkpoints, by trial id."""
Score = Callable[[Models], Mapping[str, Mapping[str, float]]]
"""Function that returns the metrics of models on the test data, by trial id. Raises RaygpuError."""


def winning_models(
    folder: RunDirectory, records: Records, best: TrialRecord, checkpoints: Mapping[str, str]
) -> dict[str, tuple[Trial, str]]:
    """Return the kept models of the winner: of one trial, or of all repeats and folds of its set that have a score.

    checkpoints: URIs by trial id, of this start; those of an earlier start lie in the run's folder.
    """
    models: dict[str, tuple[Trial, str]] = {}
    for record in sorted(records.by_id.values(), key=lambda record: Trial.order(record.trial.trial_id)):
        name = record.trial.trial_id
        if record.trial.set_id != best.trial.set_id or record.score is None or record.diverged:
            continue
        here = [checkpoints[name]] if name in checkpoints else []
        kept = (uri for uri in (*here, (folder.shared_checkpoints / name).uri) if Storage(uri).is_dir())
        if (uri := next(kept, None)) is not None:
            models[name] = record.trial, uri
    return models


def scored_once(
    folder: RunDirectory,
    tested: Splits,
    models: Models,
    score: Score,
    say: Callable[[str], None],
    folds: int | None = None,
) -> ScoreOnTest | None:
    """Return the score of the models on the test data: the noted one, if they have been scored before.

    folds: see `ScoreOnTest.of`. say: called with a line if they cannot be scored; None is returned then, and a resume
    tries again.
    """
    earlier = ScoreOnTest.read(folder.read_run().get(TEST))
    if earlier is not None and models and earlier.covers(tuple(models)):
        return earlier
    try:
        if not models:
            raise RaygpuError("no checkpoint of it was kept")
        winners = 1 if earlier is None else earlier.winners + 1
        found = ScoreOnTest.of(num_samples(tested.validation_targets), score(models), winners, folds)
    except Exception as error:  # noqa: BLE001 - no other result of the run depends on it
        again = folder.resumed_by(folder.kind)
        say(f"the best model is not scored on the test data: {one_line(error)}; try again by: {again}")
        return None
    except KeyboardInterrupt:
        again = folder.resumed_by(folder.kind)
        say(f"interrupted: the best model is not scored on the test data; score it by: {again}")
        return None
    folder.write_run({TEST: found.as_dict()})
    return found
