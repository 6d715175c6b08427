from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls

from raygpu.planning.scaling_laws import Affine, Usl

# The SPEC SDM91 benchmark and a ray tracer on an SGI Origin: N. J. Gunther, Guerrilla Capacity Planning (2007),
# chapters 5 and 4. Of the first, the manual of CRAN's package usl gives these coefficients and a peak at 96.5, by the
# least absolute error, of which the point at 1 is hardly a part.
SDM91 = {1: 64.9, 18: 995.9, 36: 1652.4, 72: 1853.2, 108: 1828.9, 144: 1775.0, 216: 1702.2}
SDM91_AS_PUBLISHED = Usl(89.9952330, 0.0277295, 0.0001044)
RAY_TRACER = {1: 20, 4: 78, 8: 130, 12: 170, 16: 190, 20: 200, 24: 210, 28: 230, 32: 260, 48: 280, 64: 310}


def test_the_scalability_law_on_published_data() -> None:
    assert SDM91_AS_PUBLISHED.peak == pytest.approx(96.5, abs=0.1)
    assert SDM91_AS_PUBLISHED.at(72) == pytest.approx(SDM91[72], rel=0.06)
    found = Usl.fit(SDM91)
    assert found.peak == pytest.approx(96.5, rel=0.05)
    assert all(found.at(n) == pytest.approx(x, rel=0.09) for n, x in SDM91.items())
    traced = Usl.fit(RAY_TRACER)
    assert traced.contention == pytest.approx(0.0498, rel=0.15), "Gunther's own"
    assert traced.coherency < 2e-5
    assert all(traced.at(n) == pytest.approx(x, rel=0.1) for n, x in RAY_TRACER.items())


@given(st.floats(1, 1e6), st.floats(0, 0.5, allow_subnormal=False), st.floats(0, 0.05, allow_subnormal=False))
def test_the_scalability_law_is_found_again(rate: float, contention: float, coherency: float) -> None:
    law = Usl(rate, contention, coherency)
    found = Usl.fit({n: law.at(n) for n in (1, 2, 3, 5, 8)})
    assert all(found.at(n) == pytest.approx(law.at(n), rel=1e-6) for n in (1, 4, 6, 13, 34))
    if coherency > 1e-6:
        assert found.peak == pytest.approx(law.peak, rel=1e-3)


def test_few_points_claim_little() -> None:
    assert Usl.fit({1: 100.0}) == Usl(100.0, 0.0, 0.0)
    assert Usl.fit({3: 300.0}).at(6) == pytest.approx(600)
    two = Usl.fit({1: 100.0, 2: 160.0})
    assert (two.coherency, two.peak) == (0, math.inf)
    assert two.at(2) == pytest.approx(160)
    assert Usl.fit({1: 100.0, 2: 220.0}).contention == 0, "no law for more than linear"


@given(st.floats(0, 1e3, allow_subnormal=False), st.floats(1e-3, 1e3))
def test_affine_is_found_again(fixed: float, each: float) -> None:
    line = Affine(fixed, each)
    found = Affine.fit({n: line.at(n) for n in (1, 4, 16)})
    assert found.at(64) == pytest.approx(line.at(64), rel=1e-6)


@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=5))
def test_affine_is_the_best_without_a_negative_part(values: list[float]) -> None:
    """SciPy's solver of such problems finds nothing better."""
    n, y = np.array([2.0**place for place in range(len(values))]), np.array(values)
    found = Affine.fit(dict(zip(map(int, n), values, strict=True)))
    terms = np.column_stack([1 / y, n / y])
    _, residual = nnls(terms, np.ones(len(n)))
    assert min(found.fixed, found.each) >= 0
    assert np.linalg.norm(terms @ [found.fixed, found.each] - 1) <= residual + 1e-6


def test_affine_of_one_point_is_proportional() -> None:
    assert Affine.fit({8: 0.008}).at(16) == pytest.approx(0.016)
    assert Affine.fit({1: 5.0, 2: 4.0}).each == 0, "more members never take less"


def test_noise_has_a_law_too() -> None:
    for measured in ({1: 100.0, 2: 10.0, 3: 1.0}, {1: 1.0, 2: 1e-6}, {2: 50.0, 3: 1.0, 5: 0.1}):
        found = Usl.fit(measured)
        assert math.isfinite(found.rate)
        assert found.rate > 0
        assert found.contention >= 0
        assert found.coherency >= 0
