"""One GPU, several trainings on it, or several GPUs: what follows from a profile and from speed-ups."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from raygpu.planning.advice import Scaling, Speedup, advise, numbers_of_devices
from raygpu.planning.confidence import Interval
from raygpu.planning.profiles import Point, Profile, Subject


def profile(gains: Mapping[int, tuple[float, float, float]], fault: str | None = None) -> Profile:
    points = [
        Point("process", n, 1000 * gain, gain, gain_low=low, gain_high=high) for n, (gain, low, high) in gains.items()
    ]
    if fault is not None:
        points.append(Point("process", 1, fault=fault))
    subject = Subject("a:B", {"batch_size": "64"}, "", "float32", "GPU", 80.0, 2, {})
    return Profile(subject, 1000, tuple(points))


FULL = profile({1: (1.0, 1.0, 1.0), 2: (1.01, 0.99, 1.03)})


def scaling(times: Mapping[int, float], spread: float = 0.01, evidence: str = "measured") -> Scaling:
    found = [Speedup(n, Interval(x, x * (1 - spread), x * (1 + spread)) if n > 1 else Interval.exactly(1.0))
             for n, x in times.items()]  # fmt: skip
    return Scaling(tuple(found), evidence)  # type: ignore[arg-type]


def test_a_training_that_is_too_small_shares_the_gpu() -> None:
    found = advise(profile({1: (1.0, 1.0, 1.0), 2: (1.9, 1.8, 2.0), 3: (2.5, 2.4, 2.6)}))
    assert found.answer == "share"
    assert found.point is not None
    assert found.point.n == 3


def test_one_that_fills_the_gpu_without_another_measurement() -> None:
    assert advise(FULL).answer == "one"


def test_devices_before_the_efficiency_falls() -> None:
    found = advise(FULL, scaling({1: 1.0, 2: 1.9, 4: 3.4, 8: 5.0}))
    assert (found.answer, found.devices, found.surely, found.at_most, found.predicted) == ("several", 4, 4, 4, False)


def test_the_uncertainty_is_that_of_the_intervals() -> None:
    found = advise(FULL, scaling({1: 1.0, 2: 1.9, 4: 3.25, 8: 5.0}, spread=0.05))
    assert (found.devices, found.surely, found.at_most) == (4, 2, 4)
    found = advise(FULL, scaling({1: 1.0, 2: 1.55}, spread=0.1))
    assert (found.answer, found.surely, found.at_most) == ("one", 1, 2)


def test_beyond_the_last_device_it_is_predicted() -> None:
    """With a contention of 1/19, X(n) = n / (1 + (n - 1) / 19): the efficiency of 5 is 0.826, that of 6 is 0.79."""
    law = {n: n / (1 + (n - 1) / 19) for n in (1, 2, 4)}
    found = advise(FULL, scaling(law))
    assert (found.devices, found.predicted) == (5, True)


def test_a_perfect_scaling_ends_with_the_batch() -> None:
    assert advise(FULL, scaling({1: 1.0, 2: 2.0, 4: 4.0})).devices == 64


def test_an_upper_bound_is_not_extrapolated() -> None:
    found = advise(FULL, scaling({1: 1.0, 2: 1.9, 4: 3.8}, evidence="one_device"))
    assert (found.answer, found.devices, found.predicted) == ("several", 4, False)


def test_more_than_linear_counts_until_it_falls() -> None:
    assert advise(FULL, scaling({1: 1.0, 2: 1.2, 4: 3.9})).devices == 1, "2 are below: nothing after them counts"


def test_one_that_does_not_fit() -> None:
    assert advise(profile({}, fault="out of memory")).answer == "too_large"
    assert advise(profile({}, fault="the training failed")).answer == "not_known"


def test_a_gain_within_noise_is_not_known() -> None:
    noisy = profile({1: (1.0, 1.0, 1.0), 2: (1.2, 0.7, 2.0)})
    assert advise(noisy).answer == "not_known"


@pytest.mark.parametrize(
    ("devices", "batch_size", "numbers"),
    [(1, 32, [1]), (2, 32, [1, 2]), (6, 32, [1, 2, 4, 6]), (8, 32, [1, 2, 4, 8]), (8, 3, [1, 2, 3]),
     (8, None, [1, 2, 4, 8])],
)  # fmt: skip
def test_numbers_of_devices(devices: int, batch_size: int | None, numbers: list[int]) -> None:
    assert numbers_of_devices(devices, batch_size) == numbers
