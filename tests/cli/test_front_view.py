from __future__ import annotations

from typing import Any

from raygpu.cli.front_view import MOST_ROWS, front_lines

METRICS = [{"metric": "accuracy", "direction": "max"}, {"metric": "latency_ms", "direction": "min"}]


def row(number: int) -> dict[str, Any]:
    values = [0.9 - number / 100, 5.0 - number / 10]
    return {"trial_id": f"t{number:04d}", "values": values, "hyperparameters": {"lr": 0.1, "layers": 2}}


def test_a_front_in_columns() -> None:
    assert front_lines(METRICS, [row(0), row(1)], None) == [
        "Pareto front of max accuracy, min latency_ms: 2 trials",
        "trial  accuracy  latency_ms   lr  layers",
        "t0000       0.9           5  0.1       2",
        "t0001      0.89         4.9  0.1       2",
    ]


def test_one_metric_none_and_many_trials() -> None:
    assert front_lines([], [], None) == []
    assert front_lines(METRICS, [], None) == [
        "no trial has a finite value of each metric (max accuracy, min latency_ms), so there is no Pareto front"
    ]
    lines = front_lines(METRICS, [row(number) for number in range(MOST_ROWS + 3)], 30)
    assert lines[-1] == "and 3 more, in summary.json"
    assert all(len(line) <= 30 for line in lines[1:-1])
