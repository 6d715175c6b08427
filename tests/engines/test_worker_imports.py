"""What a worker's process imports before the user's code: each of these costs seconds in every worker."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "tensorflow", "keras", "scipy", "sklearn", "mlflow", "optuna", "matplotlib"}
MODULES = {
    "raygpu.engines.tune.trainable": HEAVY,
    "raygpu.engines.tune.rule_actor": {*HEAVY, "ray.tune", "pandas"},
    "raygpu.engines.train.worker": {*HEAVY, "ray.tune"},
    "raygpu.engines.profiling.turns_worker": {*HEAVY, "ray.tune"},
    "raygpu.engines.train.worker_reports": {*HEAVY, "ray.train", "pandas"},
    "raygpu.engines.profiling.probe_actor": {*HEAVY, "ray.tune", "pandas"},
    "raygpu.training.fused.width": {*HEAVY, "ray", "pandas"} - {"torch"},
}
EACH = """
import importlib, json, os, sys
for name, wanted in json.loads(sys.argv[1]).items():
    if name.startswith("raygpu.engines"):
        import ray  # once for all of them, which are children of this process
    child = os.fork()
    if not child:
        importlib.import_module(name)
        print(json.dumps([name, sorted(set(wanted) & set(sys.modules))]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
"""Imports each module in a process that has imported nothing else but, for those that need it, ray."""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """The heavy modules that each module imports. Those without Ray come first."""
    wanted = {name: sorted(each) for name, each in sorted(MODULES.items(), key=lambda item: "engines" in item[0])}
    command = [sys.executable, "-c", EACH, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("module", MODULES)
def test_nothing_that_is_slow_to_load(module: str, imported: dict[str, list[str]]) -> None:
    assert imported[module] == []
