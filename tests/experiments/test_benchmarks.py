"""Benchmarks run to their records, in their smallest forms."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.benchmarks.weighted_gradient import torch_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SMALLEST = {
    "training_step": "--rounds 1",
    "optimizers": "--rounds 1",
    "member_norms": "--rounds 1",
    "unequal": "--devices simulated --rounds 1 --window-s 1",
    "production": "--frameworks torch --devices simulated --rounds 1 --seconds 1",
    "killed": "--kills 1",
    "pack": "--rounds 1 --most 4 --window-s 0.3",
    "kept_steps": "--rounds 1 --epochs 20 --networks mlp",
    "fused_throughput": "--rounds 1 --seconds 0.3 --networks mlp --widths 1,4",
    "sweep_overhead": "--rounds 1 --trials 2 --epochs 1",
}
"""Flags of each benchmark, by its module."""


@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_ends_with_a_record(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", f"experiments.benchmarks.{name}", *SMALLEST[name].split()]
    environment = {**os.environ, "RECORDS_FOLDER": str(tmp_path)}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    records = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert records
    assert all(record["results"] for record in records)


def test_the_plain_mean_that_weighted_gradients_are_compared_with_is_off() -> None:
    row = torch_row("MLP", (60, 40), "float64")
    assert row["weighted"] < 1e-14
    assert row["plain mean"] > 0.01
