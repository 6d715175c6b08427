"""What is said of a production training."""

from __future__ import annotations

import pytest

from raygpu.cli.training_view import beginning, noise_line
from raygpu.config import TrainConfig
from raygpu.planning.noise_scale import NoiseScale


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


@pytest.mark.parametrize("ended", [None, "stopped at epoch 3 of 27"])
def test_a_training_says_that_its_trial_was_stopped_early(ended: str | None) -> None:
    source = {"trial_id": "t0006", "sweep": "digits", "score": 0.3, **({"ended": ended} if ended else {})}
    values = {"experiment": "a:B", "metric": "loss", "epochs": 27, "hyperparameters": {"lr": 0.1}, "source": source}
    lines = beginning(TrainConfig.model_validate(values), simulated=False)
    assert lines[1] == "from trial t0006 of sweep digits, loss 0.3"
    told = ["that trial was stopped at epoch 3 of 27: what it would have reached by its last epoch is not known"]
    assert lines[2:] == (told if ended else [])
