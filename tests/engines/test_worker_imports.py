"""What a worker's process imports before the user's code: each of these costs seconds in every worker."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"torch", "tensorflow", "keras", "scipy", "sklearn", "mlflow", "optuna", "matplotlib"}


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("raygpu.engines.tune.trainable", HEAVY),
        ("raygpu.engines.tune.rule_actor", {*HEAVY, "ray.tune", "pandas"}),
        ("raygpu.engines.train.worker", {*HEAVY, "ray.tune"}),
        ("raygpu.engines.profiling.turns_worker", {*HEAVY, "ray.tune"}),
        ("raygpu.engines.train.worker_reports", {*HEAVY, "ray.train", "pandas"}),
        ("raygpu.engines.profiling.probe_actor", {*HEAVY, "ray.tune", "pandas"}),
        ("raygpu.training.fused.width", {*HEAVY, "ray", "pandas"} - {"torch"}),
    ],
)
def test_nothing_that_is_slow_to_load(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({unwanted!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
