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


@pytest.mark.parametrize(("metric", "wins"), [("loss", "lowest loss wins"), ("accuracy", "highest accuracy wins")])
def test_the_first_line_says_which_epoch_wins(metric: str, wins: str) -> None:
    config = TrainConfig(experiment="a:B", epochs=2, metric=metric, name="mine")
    assert beginning(config, simulated=False)[0].endswith(f"; {wins}")
