"""Sets of hyper-parameters that are trained several times, for a person: their plan, their table, and which is best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from raygpu.cli.formatting import score_text, value
from raygpu.config import SweepConfig
from raygpu.records.set_records import SetRecord
from raygpu.search.scoring import Scoring
from raygpu.search.trial_record import TrialRecord

NAMED = 5
"""Largest number of sets that a line names."""
LACKS = {
    "raced": "left out by racing",
    "stopped": "stopped early",
    "diverged": "diverged",
    "failed": "failed",
    "interrupted": "interrupted",
    "runs": "not trained yet",
}
"""Words for why a set lacks trainings."""


def size_text(config: SweepConfig) -> str:
    """Return the number of a sweep's trials as text, `64 trials` or `16 sets x 5 repeats x 3 folds = 240 trainings`."""
    if config.per_set == 1:
        return f"{config.trials} trials"
    number = (config.trials or 0) * config.per_set
    fewer = config.racing or config.stopping.algorithm != "none"
    each = [f"{config.repeats} repeats"] if config.repeats > 1 else []
    each += [f"{config.folds} folds"] if config.folds else []
    return f"{config.trials} sets x {' x '.join(each)} = {number} trainings{' at most' if fewer else ''}"


def rules_lines(config: SweepConfig) -> list[str]:
    """Return lines on the rules by which sets get fewer trainings."""
    lines = []
    if config.per_set > 1 and config.stopping.algorithm != "none":
        lines.append(
            f"repeats: {config.stopping.algorithm} compares the first training of each set; a set that it stops gets no"
            " other"
        )
    if config.racing:
        lines.append("racing: a set that is clearly worse than the leading one gets no more repeats (signed-rank test)")
    return lines


def progress(record: SetRecord) -> str:
    """Return how many trainings a set's mean is of, as `5/5`."""
    return f"{len(record.scored)}/{record.repetition.per_set}"


def table(metric: str, score_rule: str, sets: Sequence[SetRecord]) -> list[list[str]]:
    """Return the rows of the table of the best sets, first the columns' names. score_rule: last or best epoch."""
    names = list(dict.fromkeys(name for each in sets for name in each.hyperparameters))
    rows = [["set", f"{metric} ({score_rule} epoch)", "repeats", *names]]
    for each in sets:
        unscored = "diverged" if each.status == "diverged" else "-"
        score = unscored if each.mean is None else score_text(each.mean, each.error, sets[0].error)
        rows.append([each.set_id, score, progress(each), *(value(each.hyperparameters.get(name)) for name in names)])
    return rows


def verdict(sets: Sequence[SetRecord], summary: Mapping[str, Any]) -> list[str]:
    """Return lines that say whether the best set is better than the others, and which sets were not compared.

    sets: all, the best first. summary: content of `summary.json`.
    """
    several = "trainings" if summary.get("folds") else "repeats"
    lines = [told(summary["comparison"], several)] if summary["comparison"] is not None else []
    lacking = Counter(each.status for each in sets if not each.is_complete)
    if lacking:
        why = ", ".join(f"{count} {LACKS[status]}" for status, count in lacking.items())
        rest = "set lacks repeats and ranks" if lacking.total() == 1 else "sets lack repeats and rank"
        lines.append(f"{lacking.total()} {rest} below the complete ones: {why}{_better_mean(sets)}")
    if _ignores_seed(sets):
        lines.append("the repeats of every set have equal scores: the training does not seem to use its seed")
    return lines


def told(found: Mapping[str, Any], several: str) -> str:
    """Return the comparison of the best set with the others in a sentence. several: word for a set's trainings."""
    winner, worse, alike = found["winner"], found["worse"], found["alike"]
    number = len(worse) + len(alike)
    how = f"{found['test']} over {found['pairs']} {several}, Holm's correction for {number}, p < {found['level']:g}"
    if not alike:
        others = "the other complete set" if number == 1 else f"each of the {number} other complete sets"
        return f"{winner} is better than {others} ({how})"
    names = ", ".join(alike[:NAMED]) + (f" and {len(alike) - NAMED} more" if len(alike) > NAMED else "")
    better = f"; it is better than the other {len(worse)}" if worse else ""
    return f"{winner} cannot be told apart from {names}{better} ({how})"


def _better_mean(sets: Sequence[SetRecord]) -> str:
    """Return a clause that names the sets that lack repeats and have a better mean than the best set; empty without."""
    first = sets[0]
    if first.mean is None or not first.is_complete:
        return ""
    sign = 1 if first.maximize else -1
    better = [
        f"{each.set_id} ({score_text(each.mean, each.error)}, {progress(each)})"
        for each in sets
        if not each.is_complete and each.mean is not None and sign * each.mean > sign * first.mean
    ]
    more = f" and {len(better) - NAMED} more" if len(better) > NAMED else ""
    return f"; of these, a better mean has {', '.join(better[:NAMED])}{more}" if better else ""


def _ignores_seed(sets: Sequence[SetRecord]) -> bool:
    several = [each for each in sets if len(each.scored) > 1]
    return bool(several) and all(len(set(each.scores)) == 1 for each in several)


def single_line(scoring: Scoring, records: Sequence[TrialRecord], num_samples: int | None) -> str | None:
    """Return a line on what one training of each set can tell; None where it can be said of no metric but accuracy.

    records: with a score, the best first. num_samples: of the validation data; None if unknown.
    """
    scores = [record.score for record in records if record.score is not None and not record.diverged]
    if scoring.metric.rpartition("/")[2] != "accuracy" or not scoring.maximize or not num_samples or len(scores) < 2:
        return None
    best = scores[0]
    if not 0 < best < 1:
        return None
    error = (best * (1 - best) / num_samples) ** 0.5
    close = sum(score > best - error for score in scores[1:])
    if not close:
        return None
    others = f"{close} other trial{'s are' if close > 1 else ' is'}"
    return (
        f"accuracy {best:.4f} of {num_samples:,} samples has a standard error of {error:.4f}; {others} within it:"
        " --repeats 5 tells more"
    )
