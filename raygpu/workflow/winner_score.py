"""Score a sweep's winner, and a production model, on the test data: once, at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from raygpu.errors import RaygpuError, one_line
from raygpu.experiment import Splits, num_samples
from raygpu.records.run_directory import RunDirectory
from raygpu.records.score_on_test import TEST, ScoreOnTest
from raygpu.records.trial_checkpoints import kept_epoch
from raygpu.records.trial_records import Records
from raygpu.search.trial_record import TrialRecord
from raygpu.search.trials import Trial
from raygpu.storage import Storage

Models = Mapping[str, tuple[Trial, str]]
"""Trials and the URIs of their checkpoints, by trial id."""
Score = Callable[[Models], Mapping[str, Mapping[str, float]]]
"""Function that returns the metrics of models on the test data, by trial id. Raises RaygpuError."""


def trained_models(records: Records, best: TrialRecord) -> dict[str, int | None]:
    """Return the epochs of the winner's scores by trial id: of one trial, or of all of its set that its score is of."""
    trained = [best] if records.repetition.is_single else records.set_of(best.trial.set_id).scored
    return {record.trial.trial_id: record.score_epoch for record in trained}


def winners_models(
    folder: RunDirectory, records: Records, best: TrialRecord, checkpoints: Mapping[str, str]
) -> tuple[dict[str, tuple[Trial, str]], dict[str, int | None]]:
    """Return those of the winner's models that are kept, and the epochs of all of them, by trial id.

    A kept model's epoch is that of its checkpoint: of a trial that is under way, it may be an earlier one than that of
    the score. checkpoints: URIs by trial id, of this start; those of an earlier start lie in the run's folder.
    """
    trained = trained_models(records, best)
    models = kept_models(folder, records, trained, checkpoints)
    for name, (_, uri) in models.items():
        with suppress(RaygpuError):  # a damaged note: scoring the model shows what is wrong with it
            epoch = kept_epoch(Storage(uri))
            trained[name] = trained[name] if epoch is None else epoch
    return models, trained


def kept_models(
    folder: RunDirectory, records: Records, names: Iterable[str], checkpoints: Mapping[str, str]
) -> dict[str, tuple[Trial, str]]:
    """Return those of these trials' models that are kept. checkpoints: as of `winners_models`."""
    models: dict[str, tuple[Trial, str]] = {}
    for name in names:
        here = [checkpoints[name]] if name in checkpoints else []
        uris = (uri for uri in (*here, (folder.shared_checkpoints / name).uri) if Storage(uri).is_dir())
        if (uri := next(uris, None)) is not None:
            models[name] = records.by_id[name].trial, uri
    return models


def scored_once(
    folder: RunDirectory,
    tested: Splits,
    models: Models,
    score: Score,
    say: Callable[[str], None],
    trained: Mapping[str, int | None],
    folds: int | None = None,
) -> ScoreOnTest | None:
    """Return the score of the models on the test data: the noted one, if they have been scored before.

    say: called with a line if they cannot be scored; None is returned then, and a resume tries again. trained: epochs
    of the set's models by trial id, of those too whose checkpoints were not kept. folds: see `ScoreOnTest.of`.
    """
    epochs = {name: trained[name] for name in models}
    earlier = ScoreOnTest.read(folder.read_run().get(TEST))
    if earlier is not None and models and earlier.covers(epochs):
        return earlier
    try:
        if not models:
            raise RaygpuError("no checkpoint of it was kept")
        winners = 1 if earlier is None else earlier.winners + 1
        num = num_samples(tested.validation_targets)
        test_score = ScoreOnTest.of(num, score(models), winners, folds, epochs, len(trained))
    except Exception as error:  # noqa: BLE001 - no other result of the run depends on it
        again = folder.resumed_by(folder.kind)
        say(f"the best model is not scored on the test data: {one_line(error)}; try again by: {again}")
        return None
    except KeyboardInterrupt:
        again = folder.resumed_by(folder.kind)
        say(f"interrupted: the best model is not scored on the test data; score it by: {again}")
        return None
    folder.write_run({TEST: test_score.as_dict()})
    return test_score
