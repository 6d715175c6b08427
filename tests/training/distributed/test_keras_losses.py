"""Losses that are no means over samples are exact over several devices and in parts, also in Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from raygpu.training.distributed.ranks import ParallelSettings
from tests.ranks import on_keras_ranks
from tests.training.distributed.keras_losses import (
    means_in_fp16,
    results,
    results_in_float32,
    results_in_float32_on_one,
    results_on_one,
)


@pytest.fixture(scope="module")
def alone() -> Any:
    return on_keras_ranks(1, results, None, local=2)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "function", "processes", "local"),
    [
        (ParallelSettings(50, ratios=(4.0, 1.0)), results, 1, 2),
        (ParallelSettings(50, accumulate=4), results_on_one, 1, 2),
        (ParallelSettings(50, accumulate=2, ratios=(3.0, 2.0)), results, 2, 1),
    ],
    ids=["two devices of a process", "parts", "two processes, in parts"],
)
def test_losses_that_are_no_means(
    alone: Any, parallel: ParallelSettings, function: Callable[..., Any], processes: int, local: int
) -> None:
    found = on_keras_ranks(processes, function, parallel, local=local)
    for name, (wanted, metrics) in alone.items():
        for own in found:
            weights, _ = own[name]
            assert np.linalg.norm(weights - wanted) <= 1e-12 * np.linalg.norm(wanted), name
        assert found[0][name][1] == pytest.approx(metrics, rel=1e-9), name


@pytest.mark.parametrize(
    ("parallel", "function", "processes", "local"),
    [
        (ParallelSettings(50), results_in_float32_on_one, 1, 2),
        (ParallelSettings(50, accumulate=2), results_in_float32_on_one, 1, 2),
        (ParallelSettings(50, ratios=(3.0, 2.0)), results_in_float32, 1, 2),
        pytest.param(ParallelSettings(50), results_in_float32, 2, 1, marks=pytest.mark.slow),
    ],
    ids=["one device", "parts", "two devices of a process", "two processes"],
)
def test_means_and_models_of_two_dtypes_train_in_float32(
    parallel: ParallelSettings, function: Callable[..., Any], processes: int, local: int
) -> None:
    alone = on_keras_ranks(1, results_in_float32, None, local=2)[0]
    for own in on_keras_ranks(processes, function, parallel, local=local):
        for name, (wanted, _) in alone.items():
            weights, _ = own[name]
            assert np.linalg.norm(weights - wanted) <= 1e-5 * np.linalg.norm(wanted), name


def test_a_mean_in_fp16_on_one_device_is_scaled_as_in_a_trial() -> None:
    ((trial, own),) = on_keras_ranks(1, means_in_fp16, local=2)
    assert own[1] == trial[1], "the loss scale"
    assert np.linalg.norm(own[0] - trial[0]) <= 1e-3 * np.linalg.norm(trial[0])
