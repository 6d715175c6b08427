"""The start of a sweep, as far as the experiment's first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from raygpu.config import SweepConfig
from raygpu.workflow.user_code import Problem, find, problem
from raygpu.workflow.validation import prepare


def problem_of(path: str, name: str, space: dict[str, Any], folder: Path) -> Problem:
    """What a sweep's start makes of an experiment of a test module; Keras' have names that begin so."""
    pytest.importorskip("tensorflow" if name.startswith("Keras") else "torch")
    values: dict[str, Any] = {"experiment": f"{path}:{name}", "epochs": 1, "space": space}
    is_grid = "grid_search" in str(space)
    values |= {"search": {"algorithm": "grid"}} if is_grid else {"trials": 3}
    config = SweepConfig.model_validate({**values, "runs_dir": str(folder), "tracking": {"enabled": False}})
    prepared = prepare(config, "test")
    return problem(prepared, *find(prepared.config, Path.cwd()))
