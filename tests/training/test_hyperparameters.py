"""The learning rate at every step, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.training.hyperparameters import SCHEDULES, OptimizerSettings


def rates(steps_per_epoch: int, epochs: int, **hp: Any) -> list[float]:
    """The learning rate of each step of a training."""
    settings = OptimizerSettings.of(hp)
    return [settings.lr_at(step, steps_per_epoch, epochs) for step in range(steps_per_epoch * epochs)]


def test_values_of_each_schedule() -> None:
    assert rates(2, 2, lr=0.5) == [0.5] * 4
    assert rates(1, 4, lr=1.0, schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert rates(2, 3, lr=1.0, schedule="step", step_epochs=1, gamma=0.5) == [1, 1, 0.5, 0.5, 0.25, 0.25]
    assert rates(2, 3, lr=1.0, schedule="step", step_epochs=1.5, gamma=0.5) == [1, 1, 1, 0.5, 0.5, 0.5]
    assert rates(4, 2, lr=1.0, warmup_epochs=1) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert rates(2, 2, lr=1.0, schedule="cosine", warmup_epochs=1) == pytest.approx([0.5, 1, 1, 0.5])


@pytest.mark.parametrize("steps_per_epoch", [7, 10, 30, 100])
@pytest.mark.parametrize("step_epochs", ["0.1", "0.3", "0.6", "0.7", "1.1", "1.2", "3.3"])
def test_the_rate_drops_at_the_step_that_begins_after_so_many_epochs(step_epochs: str, steps_per_epoch: int) -> None:
    found = rates(steps_per_epoch, 12, lr=1.0, schedule="step", step_epochs=float(step_epochs), gamma=0.5)
    each = Fraction(step_epochs)
    assert found == [0.5 ** (Fraction(step, steps_per_epoch) // each) for step in range(12 * steps_per_epoch)]


@given(
    lr=st.floats(0, 1e3),
    schedule=st.sampled_from(SCHEDULES),
    warmup_epochs=st.floats(0, 5),
    step_epochs=st.floats(0.1, 20),
    gamma=st.floats(0, 1),
    steps_per_epoch=st.integers(1, 20),
    epochs=st.integers(1, 8),
)
def test_rates_stay_between_zero_and_lr(
    lr: float,
    schedule: str,
    warmup_epochs: float,
    step_epochs: float,
    gamma: float,
    steps_per_epoch: int,
    epochs: int,
) -> None:
    shape: dict[str, Any] = {"schedule": schedule, "step_epochs": step_epochs, "gamma": gamma}
    found = rates(steps_per_epoch, epochs, lr=lr, warmup_epochs=warmup_epochs, **shape)
    assert all(0 <= rate <= lr * (1 + 1e-9) for rate in found)
    after = round(warmup_epochs * steps_per_epoch)
    assert all(one <= two for one, two in pairwise(found[:after]))
    assert all(one >= two for one, two in pairwise(found[after:]))
    if schedule == "constant":
        assert all(rate == lr for rate in found[after:])
    if 0 < after <= len(found):
        assert found[after - 1] == pytest.approx(lr)


def test_defaults_are_those_of_torch() -> None:
    assert OptimizerSettings.of({}) == OptimizerSettings()
    adamw = OptimizerSettings.of({"optimizer": "adamw"})
    assert (adamw.lr, adamw.weight_decay) == (1e-3, 1e-2)
    assert OptimizerSettings.of({"optimizer": "adam"}).weight_decay == 0
    assert OptimizerSettings.of({}).batch_size == 32


@pytest.mark.parametrize("size", [0, -1, 2.0, "32", True, None])
def test_batch_sizes_refused(size: Any) -> None:
    with pytest.raises(ValueError, match=r"batch_size: read .*at least 1"):
        OptimizerSettings.of({"batch_size": size})


@pytest.mark.parametrize(
    "hp",
    [
        {"lr": float("nan")},
        {"lr": "0.1"},
        {"lr": float("inf")},
        {"momentum": 1.5},
        {"weight_decay": -0.1},
        {"step_epochs": 0},
        {"betas": (0.9,)},
        {"clip_norm": -1.0},
        {"nesterov": True},
        {"nesterov": "false", "momentum": 0.9},
    ],
    ids=str,
)
def test_values_refused(hp: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"hyper-parameter {next(iter(hp))}: "):
        OptimizerSettings.of(hp)
