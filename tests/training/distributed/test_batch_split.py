"""What an optimizer step is, by the configuration: batches, learning rate, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from raygpu.config import TrainConfig
from raygpu.errors import BadInput
from raygpu.training.distributed.batch_split import spread
from raygpu.training.distributed.coordinator import Coordinator
from raygpu.training.distributed.ranks import OneRank
from tests.training.distributed.test_coordinator import Two


def config(hp: dict[str, Any] | None = None, **values: Any) -> TrainConfig:
    given = {"experiment": "a:B", "epochs": 20, "hyperparameters": {"batch_size": 32, "lr": 0.1} | (hp or {})}
    return TrainConfig.model_validate(given | values)


def test_the_batch_size_is_each_worker_s_part() -> None:
    found = spread(config(accumulate=3), 2, 10_000)
    assert (found.parallel.global_batch, found.parallel.accumulate) == (192, 3)
    assert found.lines[0] == "an optimizer step: 192 samples: 96 + 96, each in 3 parts (batch_size is 32)"
    assert spread(config(), 1, 1000).lines[0] == "an optimizer step: 32 samples (batch_size is 32)"


def test_a_short_batch_has_the_parts_of_a_trial() -> None:
    found = spread(config({"batch_size": 64, "micro_batch_size": 16}), 1, 81)
    assert found.lines[0] == "an optimizer step: 64 samples, each in 4 parts (batch_size is 64)"
    assert (found.parallel.accumulate, found.parallel.num_parts) == (1, 4)
    batches = [Coordinator(found.parallel, OneRank()).local_batches(*bounds) for bounds in ((0, 64), (64, 81))]
    assert [batch.sizes for (batch,) in batches] == [[16, 16, 16, 16], [9, 8]]


def test_unequal_shares_are_taken_in_parts_of_the_same_size_at_most() -> None:
    found = spread(config({"micro_batch_size": 1}, global_batch=64, ratios="3,1"), 2, 10_000)
    assert found.lines[0].startswith("an optimizer step: 64 samples: 48 + 16, as 3,1, in parts of 1 sample at most")
    coordinator = Coordinator(found.parallel, Two(), equal_parts=False)
    assert [set(batch.sizes) for batch in coordinator.local_batches(0, 64)] == [{1}, {1}]


def test_a_global_batch_is_what_it_says() -> None:
    found = spread(config(global_batch=100, ratios="768,560"), 2, 10_000)
    assert found.parallel.ratios == (768.0, 560.0)
    assert found.lines[0] == "an optimizer step: 100 samples: 58 + 42, as 768,560 (batch_size is 32)"


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    found = spread(config(global_batch=100), 2, 60)
    assert found.parallel.global_batch == 60
    assert found.lines[1] == "a batch is all 60 training samples of an epoch, not 100"


@pytest.mark.parametrize(
    ("values", "hp", "factor", "warmup", "line"),
    [
        ({}, {}, 1.0, 0.0, "sgd, learning rate 0.1, constant"),
        ({"lr_scaling": "linear"}, {}, 4.0, 1.0, "sgd, learning rate 0.1 x 4 = 0.4, rising over 1 epoch, constant"),
        ({"lr_scaling": "sqrt"}, {"warmup_epochs": 2, "optimizer": "adam"}, 2.0, 2.0,
         "adam, learning rate 0.1 x 2 = 0.2, rising over 2 epochs, constant"),
        ({"lr_scaling": "linear", "warmup_epochs": 0}, {}, 4.0, 0.0, "sgd, learning rate 0.1 x 4 = 0.4, constant"),
        ({"lr_scaling": "linear", "changes": [{"epoch": 3, "warmup_epochs": 9}]}, {}, 4.0, 0.0,
         "sgd, learning rate 0.1 x 4 = 0.4, constant; other values from epoch 3 on"),
    ],
)  # fmt: skip
def test_the_learning_rate(values: Any, hp: Any, factor: float, warmup: float, line: str) -> None:
    found = spread(config(hp, **values), 4, 10_000)
    assert (found.settings.lr, found.settings.warmup_epochs) == (0.1 * factor, warmup)
    assert found.lr_line == line


@pytest.mark.parametrize("scaling", ["none", "linear", "sqrt"])
def test_a_batch_size_above_the_number_of_samples_is_that_of_a_trial(scaling: str) -> None:
    """Whose batch is all samples."""
    found = spread(config({"batch_size": 1024, "ema_decay": 0.99}, lr_scaling=scaling), 2, 400)
    assert (found.parallel.global_batch, found.settings.lr, found.settings.ema_decay) == (400, 0.1, 0.99)
    assert found.settings.warmup_epochs == 0
    assert found.lr_line == "sgd, learning rate 0.1, constant"


def test_an_average_reaches_as_far_back_with_larger_batches() -> None:
    found = spread(config({"ema_decay": 0.9}), 3, 10_000)
    assert found.settings.ema_decay == pytest.approx(0.729)
    assert "ema_decay 0.9 becomes 0.729: a batch is 3 times as large" in found.lines
    assert spread(config({"ema_decay": 0.9}), 1, 10_000).settings.ema_decay == 0.9
    assert spread(config(), 3, 10_000).settings.ema_decay is None


@pytest.mark.parametrize(
    ("values", "hp", "workers", "num_train", "fault"),
    [
        ({"ratios": "3,2"}, {}, 3, 100, "ratios: read 3,2, 2 numbers for 3 devices"),
        ({"global_batch": 3}, {}, 4, 100, "global_batch: read 3; 4 devices need 4 samples at least, one each"),
        ({}, {}, 4, 3, "workers: 4 devices, but there are 3 training samples"),
        ({}, {"batch_size": "x"}, 1, 100, "hyperparameters: batch_size: read 'x'; a whole number of at least 1"),
        ({}, {"lr": -1}, 1, 100, "hyperparameters: lr: read -1; a number from 0 to inf is wanted"),
    ],
)
def test_what_cannot_be(values: Any, hp: Any, workers: int, num_train: int, fault: str) -> None:
    with pytest.raises(BadInput) as caught:
        spread(config(hp, **values), workers, num_train)
    assert str(caught.value).startswith(fault)


def test_an_earlier_start_s_batch_goes_on() -> None:
    assert spread(config(), 2, 1000, global_batch=128).parallel.global_batch == 128
