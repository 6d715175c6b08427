"""GPUs that were used too little while a run held them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raygpu.planning.under_use import LONG_S, Sample, under_use


def samples(values: list[dict[str, float]], every_s: float = 2.0, began_s: float = 1000.0) -> list[Sample]:
    return [(began_s + i * every_s, each) for i, each in enumerate(values)]


ALL = [(1000.0, 2000.0)]


def test_a_gpu_whose_kernels_ran_is_told_of_by_nothing() -> None:
    assert under_use(0, ALL, samples([{"util_pct": 95.0}] * 100)) is None
    assert under_use(0, ALL, samples([{"util_pct": 95.0, "sm_util_pct": 60.0}] * 100)) is None


def test_utilisation_alone_never_shows_a_full_gpu_and_sm_activity_shows_an_empty_one() -> None:
    found = under_use(2, ALL, samples([{"util_pct": 99.0, "sm_util_pct": 12.0}] * 100))
    assert found is not None
    assert (found.gpu, found.kind, found.of_s, found.sm_util_pct) == (2, "light", 198.0, pytest.approx(12.0))


def test_an_idle_gpu_is_told_of_with_its_seconds() -> None:
    found = under_use(0, ALL, samples([{"util_pct": 20.0}] * 101))
    assert found is not None
    assert (found.kind, found.lost_s, found.of_s) == ("idle", pytest.approx(160.0), pytest.approx(200.0))
    assert not found.cpu_binds


def test_busy_cpus_are_the_cause_of_an_idle_gpu() -> None:
    use, host = samples([{"util_pct": 20.0}] * 101), samples([{"cpu_pct": 97.0}] * 101)
    found = under_use(0, ALL, use, host)
    assert found is not None
    assert found.cpu_binds
    calm = under_use(0, ALL, use, samples([{"cpu_pct": 40.0}] * 101))
    assert calm is not None
    assert not calm.cpu_binds


def test_a_gpu_without_trials_is_empty_and_its_kernels_do_not_count() -> None:
    found = under_use(1, [(1000.0, 1050.0)], samples([{"util_pct": 90.0}] * 101))
    assert found is not None
    assert (found.kind, found.of_s) == ("empty", pytest.approx(200.0))
    assert found.lost_s == pytest.approx(148.0)


def test_the_time_between_two_starts_is_no_idle_time() -> None:
    first, second = samples([{"util_pct": 95.0}] * 50), samples([{"util_pct": 95.0}] * 50, began_s=90_000.0)
    assert under_use(0, [(1000.0, 1100.0), (90_000.0, 90_100.0)], first + second) is None


def test_a_short_run_is_not_told_of() -> None:
    assert under_use(0, ALL, samples([{"util_pct": 0.0}] * int(LONG_S / 2 - 2))) is None


def test_a_simulated_gpu_has_no_reading_and_no_line() -> None:
    assert under_use(0, [], samples([{"samples_per_s": 5.0}] * 100)) is None
    assert under_use(0, ALL, []) is None


@given(
    util=st.lists(st.floats(0, 100), min_size=1, max_size=60),
    stays=st.lists(st.tuples(st.floats(900, 1200), st.floats(0, 200)), max_size=5),
)
def test_lost_time_is_a_part_of_the_measured_time(util: list[float], stays: list[tuple[float, float]]) -> None:
    found = under_use(0, [(begin, begin + length) for begin, length in stays], samples([{"util_pct": u} for u in util]))
    if found is not None:
        assert LONG_S <= found.lost_s <= found.of_s + 1e-6
        assert found.of_s <= 2.0 * len(util)
