"""Losses that are no means over samples are exact over several devices and in parts, also in Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raygpu.training.distributed.ranks import ParallelSettings
from tests.ranks import on_keras_ranks
from tests.training.distributed.keras_losses import results


@pytest.fixture(scope="module")
def alone() -> Any:
    return on_keras_ranks(1, results, None)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parallel", "processes", "local"),
    [
        (ParallelSettings(50, ratios=(4.0, 1.0)), 1, 2),
        (ParallelSettings(50, accumulate=4), 1, 1),
        (ParallelSettings(50, accumulate=2, ratios=(3.0, 2.0)), 2, 1),
    ],
    ids=["two devices of a process", "parts", "two processes, in parts"],
)
def test_losses_that_are_no_means(alone: Any, parallel: ParallelSettings, processes: int, local: int) -> None:
    found = on_keras_ranks(processes, results, parallel, local=local)
    for name, (wanted, metrics) in alone.items():
        for own in found:
            weights, _ = own[name]
            assert np.linalg.norm(weights - wanted) <= 1e-12 * np.linalg.norm(wanted), name
        assert found[0][name][1] == pytest.approx(metrics, rel=1e-9), name
