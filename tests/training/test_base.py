"""The environment that a training's process is given, and what `metrics()` may return."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from raygpu.experiment import Mean
from raygpu.training.base import scores, thread_environment


def test_threads_are_bounded() -> None:
    assert thread_environment(3)["OMP_NUM_THREADS"] == "3"


def test_waiting_threads_yield_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert "OMP_WAIT_POLICY" not in thread_environment(2)
    assert thread_environment(2, yielding=True)["OMP_WAIT_POLICY"] == "passive"


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert thread_environment(2, yielding=True)["OMP_WAIT_POLICY"] == "active"


@pytest.mark.parametrize(
    ("metrics", "fault"),
    [
        (0.5, r"metrics\(\) returned float; a dict is wanted"),
        (None, r"metrics\(\) returned NoneType; a dict is wanted"),
        ({"accuracy": "good"}, r"metrics\(\) returned 'good' as 'accuracy'; a number is wanted"),
        ({"accuracy": None}, r"metrics\(\) returned None as 'accuracy'; a number is wanted"),
        ({"f1": {"cat": 0.5}}, r"metrics\(\) returned {'cat': 0.5} as 'f1'; a number is wanted"),
    ],
    ids=str,
)
def test_metrics_that_are_no_numbers_by_name_are_named(metrics: Any, fault: str) -> None:
    with pytest.raises(TypeError, match=fault):
        scores(0.1, metrics)


def test_numbers_and_means_are_metrics() -> None:
    given = {"accuracy": 0.5, "mae": np.float32(1), "f1": Mean(1.0, 2.0)}
    assert scores(0.1, given) == {"loss": 0.1, **given}
