from __future__ import annotations

import math
import sys

import pytest

from raygpu.errors import BadInput, UnknownMetric
from raygpu.search.scoring import LARGEST, Scoring, TrialScores
from raygpu.search.trials import EpochResult

ACCURACY = Scoring("accuracy", maximize=True)


def test_a_metric_is_found_by_its_own_name_and_below_validation() -> None:
    assert ACCURACY.score({"accuracy": 0.5, "validation/accuracy": 0.9}) == 0.5
    assert ACCURACY.score({"train/loss": 1.0, "validation/accuracy": 0.9}) == 0.9
    with pytest.raises(BadInput, match=r"metric: read 'accuracy'; the experiment reports: auc, loss"):
        ACCURACY.score({"loss": 1.0, "auc": 0.5})


def test_the_worst_score_is_on_the_worse_side() -> None:
    assert ACCURACY.worst == -math.inf
    assert Scoring("loss", maximize=False).worst == math.inf


@pytest.mark.parametrize("name", ["loss", "train/loss", "val_loss", "accuracy", "validation/accuracy"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_metric_and_losses_diverge(name: str, value: float) -> None:
    assert ACCURACY.diverged({"accuracy": 0.5, name: value})


def test_the_value_of_a_report() -> None:
    assert ACCURACY.value({"accuracy": 0.5}) == 0.5
    assert ACCURACY.value({"accuracy": 0.5, "loss": math.nan}) == -math.inf
    assert ACCURACY.value({"note": 1.0}) is None


def test_another_metric_may_be_nan() -> None:
    assert not ACCURACY.diverged({"accuracy": 0.5, "loss": 1.0, "auc": math.nan})


def scores_of(scoring: Scoring, *scores: float | None) -> TrialScores:
    found = TrialScores()
    for epoch, score in enumerate(scores, 1):
        found.take(scoring, EpochResult(epoch, {"other": 1.0} if score is None else {scoring.metric: score}))
    return found


@pytest.mark.parametrize(("maximize", "best", "epoch"), [(True, 0.9, 2), (False, 0.3, 4)])
def test_a_score_is_of_the_last_epoch_or_of_the_best(maximize: bool, best: float, epoch: int) -> None:
    last, by_best = Scoring("x", maximize), Scoring("x", maximize, "best")
    found = scores_of(last, 0.5, 0.9, 0.9, 0.3, None, 0.4)
    assert (found.score(last), found.last_epoch) == (0.4, 6)
    assert (found.score(by_best), found.best_epoch) == (best, epoch), "the first of equal ones"


def test_a_diverged_trial_has_the_worst_score_either_way() -> None:
    for scoring in (ACCURACY, Scoring("accuracy", True, "best")):
        found = scores_of(scoring, 0.9, math.nan)
        assert found.score(scoring) == -math.inf
        assert found.found == (0.9, 1, None)


def test_the_loss_is_that_of_the_epoch_of_the_score() -> None:
    losses = [0.123456789, 0.5, math.nan]
    for scores, by_last, by_best in (([0.9, 0.8], 0.5, 0.123457), ([0.9, 0.8, 0.7], None, None)):
        found = TrialScores()
        for epoch, (score, loss) in enumerate(zip(scores, losses, strict=False), 1):
            found.take(ACCURACY, EpochResult(epoch, {"accuracy": score, "validation/loss": loss}))
        assert (found.loss("last"), found.loss("best")) == (by_last, by_best), "a NaN ends the trial"


def test_without_the_metric_there_is_no_score() -> None:
    with pytest.raises(UnknownMetric):
        scores_of(ACCURACY, None)


def test_scores_can_be_computed_with_whatever_finite_number_was_reported() -> None:
    largest = sys.float_info.max
    scoring = Scoring("loss", False, further=(("size", False),))
    assert scoring.value({"loss": largest}) == LARGEST
    assert scoring.value({"loss": -largest}) == -LARGEST
    assert scoring.value({"loss": math.inf}) == math.inf, "diverged"
    assert scoring.further_values({"size": largest}) == (LARGEST,)
    assert scoring.beyond({"loss": largest, "validation/size": -largest, "other": largest}) == {
        "loss": largest,
        "size": -largest,
    }
    assert scoring.beyond({"loss": math.nan, "size": math.inf}) == scoring.beyond({"loss": LARGEST}) == {}
