"""What is said of a production training."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.cli.training_view import beginning, ending, noise_line
from raygpu.config import TrainConfig
from raygpu.planning.noise_scale import NoiseScale
from raygpu.records.training_progress import Best, History
from raygpu.search.scoring import Scoring


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (1000, "a batch of 1000 is past it, and a larger one would hardly take fewer steps"),
        (100, "about the batch of 100"),
        (10, "a batch of 10 is below it, and a larger one would take fewer steps"),
    ],
)
def test_a_batch_is_below_about_or_past_the_noise_scale(batch: int, said: str) -> None:
    line = noise_line(NoiseScale(100.0, 80.0, 120.0), batch)
    assert line.startswith("the gradient noise scale is 100 samples (80 to 120)")
    assert said in line


@pytest.mark.parametrize(("metric", "wins"), [("loss", "lowest loss wins"), ("accuracy", "highest accuracy wins")])
def test_the_first_line_says_which_epoch_wins(metric: str, wins: str) -> None:
    config = TrainConfig(experiment="a:B", epochs=2, metric=metric, name="mine")
    assert beginning(config, simulated=False)[0].endswith(f"; {wins}")


@pytest.mark.parametrize(
    ("own", "source", "named", "compared"),
    [
        ({}, {}, "loss 0.3", True),
        ({"metric": "accuracy"}, {}, "loss 0.3", False),
        ({"direction": "max"}, {}, "loss 0.3", False),
        ({}, {"folds": 5}, "loss 0.3 over 5 folds", False),
    ],
)
def test_a_trials_score_has_its_own_metric_and_is_compared_with_its_like(
    own: dict[str, Any], source: dict[str, Any], named: str, compared: bool
) -> None:
    score = {"sweep": "search", "trial_id": "t0001", "score": 0.3, "metric": "loss", "direction": "min"}
    config = TrainConfig.model_validate({"experiment": "a:B", "source": score | source} | own)
    assert beginning(config, simulated=False)[1] == f"from trial t0001 of sweep search, {named}"
    history = History(Scoring(config.metric, maximize=config.maximize), [], epochs=5, best=Best(0.25, 3))
    assert ("the trial's was 0.3" in ending(config, history, None)[0]) is compared


@pytest.mark.parametrize("ended", [None, "stopped at epoch 3 of 27"])
def test_a_training_says_that_its_trial_was_stopped_early(ended: str | None) -> None:
    source = {"trial_id": "t0006", "sweep": "digits", "score": 0.3, **({"ended": ended} if ended else {})}
    values = {"experiment": "a:B", "metric": "loss", "epochs": 27, "hyperparameters": {"lr": 0.1}, "source": source}
    lines = beginning(TrainConfig.model_validate(values), simulated=False)
    assert lines[1] == "from trial t0006 of sweep digits, loss 0.3"
    told = ["that trial was stopped at epoch 3 of 27: what it would have reached by its last epoch is not known"]
    assert lines[2:] == (told if ended else [])
