"""The models that every test of arrays is run with, and steps that are not compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from raygpu.training.fused import compiled_step
from tests.models import MODELS


@pytest.fixture(params=MODELS)
def model_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def exported_alone(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The steps by file that are traced and exported, and run in that form: to compile one takes ten seconds and more.
    `test_array_cache.py` compiles one, and `tests/contracts/test_zoo.py` many."""
    steps: dict[str, Any] = {}

    def keep(exported: torch.export.ExportedProgram, *, package_path: str, inductor_configs: dict[str, Any]) -> None:
        steps[package_path] = exported.module()

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", keep)
    monkeypatch.setattr(compiled_step, "require_loadable", lambda path: None)
    monkeypatch.setattr(compiled_step, "load_package", lambda path: lambda tensors: steps[str(path)](*tensors))
    return steps
