"""The split of a batch over devices whose speeds are known."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from raygpu.balancing import Curve, balanced, lowered, predicted


def curve(fixed_s: float, samples_per_s: float, sizes: Sequence[int] = (16, 32, 64, 128, 256, 512)) -> Curve:
    """Of a device whose step has a cost of its own beside that of each sample."""
    return Curve({size: size / (fixed_s + size / samples_per_s) for size in sizes})


def test_a_climb_ends_after_two_doublings_without_a_gain() -> None:
    found = Curve()
    for batch, rate in ((16, 100.0), (32, 190.0), (64, 192.0), (128, 240.0)):
        found.tell(batch, rate)
        assert found.ended is None, f"{batch} is one doubling after a gain at most"
    found.tell(256, 245.0)
    found.tell(512, 243.0)
    assert found.ended == "gain"
    assert found.best == 128, "the smallest within a twentieth of the fastest"


def test_all_devices_take_the_same_time() -> None:
    curves = [curve(0.002, 1000.0), curve(0.004, 600.0)]
    for whole in (40, 100, 333, 640):
        found = balanced(curves, whole)
        assert found.global_batch == whole
        exact = [0.002 + found.shares[0] / 1000, 0.004 + found.shares[1] / 600]
        assert abs(exact[0] - exact[1]) <= 0.0035, "a sample more or less"
        best = max(predicted(curves, [n, whole - n]).samples_per_s for n in range(1, whole))
        assert found.samples_per_s >= 0.99 * best


def test_no_device_has_more_than_its_best_batch() -> None:
    curves = [curve(0.001, 1000.0), curve(0.001, 500.0, (16, 32, 64))]
    found = balanced(curves)
    assert all(share <= 1.05 * each.best for share, each in zip(found.shares, curves, strict=True))
    assert found.shares[0] > 1.5 * found.shares[1]


def test_memory_bounds_a_share() -> None:
    full = curve(0.001, 1000.0, (16, 32, 64))
    full.ended = "memory"
    assert balanced([curve(0.001, 1000.0), full], 400).shares == (336, 64)
    with pytest.raises(ValueError, match="devices hold 128"):
        balanced([full, full], 400)


def test_one_measured_batch_tells_of_others_in_proportion() -> None:
    assert Curve({100: 50.0}).step_s(10) == pytest.approx(0.2)


def test_an_out_of_memory_lowers_all_by_a_fifth() -> None:
    assert lowered([512, 355]) == [409, 284]
    assert lowered([1000, 1]) == [800, 1]
    with pytest.raises(ValueError, match="a batch of one sample"):
        lowered([1, 1])


def test_a_device_without_a_measurement() -> None:
    with pytest.raises(ValueError, match="no batch was measured"):
        _ = Curve().best
