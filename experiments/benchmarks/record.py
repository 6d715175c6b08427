"""A benchmark's record: what was measured, on what, with which versions, by which command."""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from raygpu.devices.host import available_memory_gib, num_cpus
from raygpu.devices.nvml import gpus

RECORDS = Path(__file__).parent / "records"
EXPERIMENTS = Path(__file__).parents[1]
FOLDER_VARIABLE = "RECORDS_FOLDER"
"""Variable that names another folder, for records of a benchmark that is only tried out."""
LOAD_BEFORE = [round(load, 2) for load in os.getloadavg()]
"""When the benchmark began: this module is imported before anything is measured."""
PACKAGES = ("raygpu", "ray", "torch", "tensorflow", "mlflow", "optuna", "numpy")


def write(
    name: str, results: dict[str, Any], configuration: dict[str, Any], part: str | None = None, kind: str = "benchmarks"
) -> Path:
    """Write `records/<date>-<name>.json`, or `...-<name>-<part>.json`; returns its path.

    kind: the folder of `experiments` that the measurement belongs to, benchmarks or studies.
    """
    content = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python", "-m", f"experiments.{kind}.{name}", *sys.argv[1:]]),
        "machine": {
            "processor": _processor(),
            "cpus": num_cpus(),
            "memory_available_gib": round(available_memory_gib(), 1),
            "gpus": [gpu.name for gpu in gpus()],
            "load_before": LOAD_BEFORE,
        },
        "versions": {"python": platform.python_version(), **_versions()},
        "configuration": configuration,
        "results": results,
    }
    folder = Path(os.environ.get(FOLDER_VARIABLE) or EXPERIMENTS / kind / RECORDS.name)
    folder.mkdir(exist_ok=True)
    path = folder / f"{content['date']}-{name}{f'-{part}' if part else ''}.json"
    path.write_text(json.dumps(content, indent=2, default=str) + "\n")
    print(json.dumps(results.get("ratios", results), indent=2))
    print(f"record: {path}")
    return path


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
