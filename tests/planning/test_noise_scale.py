"""The gradient noise scale."""

from __future__ import annotations

import numpy as np
import pytest

from raygpu.planning.noise_scale import NoiseEstimator


def test_the_noise_scale_of_gradients_that_are_known() -> None:
    """Gradients with mean 1 in each of 50 dimensions and variance 4: tr(S) / |G|^2 = 200 / 50 = 4."""
    rng, estimator = np.random.default_rng(0), NoiseEstimator()
    sizes = [12, 4, 8]
    for step in range(200):
        own = [1 + 2 * rng.standard_normal(50) / size**0.5 for size in sizes]
        whole = sum(size * g for size, g in zip(sizes, own, strict=True)) / sum(sizes)
        estimator.add(sizes, [float(g @ g) for g in own], float(whole @ whole))
        if step < 7:
            assert estimator.scale() is None
    scale = estimator.scale()
    assert scale is not None
    assert scale.low < 4 < scale.high or scale.samples == pytest.approx(4, rel=0.25)
    assert scale.high - scale.low < 2


def test_no_noise_scale_of_one_rank_or_of_noise_alone() -> None:
    alone, noise = NoiseEstimator(), NoiseEstimator()
    for _ in range(20):
        alone.add([8], [1.0], 1.0)
        noise.add([8, 8], [2.0, 2.0], 0.5)
    assert alone.scale() is None
    assert noise.scale() is None
