from __future__ import annotations

import math

import pytest

from raygpu.errors import BadInput
from raygpu.trials import Scoring

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
