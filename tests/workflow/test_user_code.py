"""The user's experiment, loaded and tried: notes that depend on the machine's GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.digits import Cnn, Mlp
from raygpu.config import SweepConfig
from raygpu.config.source import Source
from raygpu.workflow.user_code import FULL_PRECISION, find, problem, tried_step
from raygpu.workflow.validation import prepare
from tests.fakes.nvml import FakeNvml

SHAPES: dict[Any, dict[str, Any]] = {Mlp: {"hidden": 8}, Cnn: {"blocks": 1, "channels": 2, "channels2": 2}}


def notes(kind: Any, precision: str = "float32") -> tuple[str, ...]:
    config = SweepConfig.model_validate(
        {"experiment": f"experiments.digits:{kind.__name__}", "space": SHAPES[kind], "gpu": {"precision": precision}}
        | {"metric": "accuracy", "trials": 2}
    )
    source = Source("torch", f"experiments.digits:{kind.__name__}", ".")
    return tried_step(config, source, kind(), {**SHAPES[kind], "lr": 0.1, "batch_size": 32}).notes


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Any:
    (device,) = FakeNvml(["NVIDIA A100"]).install(monkeypatch).devices
    return device


def test_convolutions_in_full_precision_are_told_where_torch_takes_tf32(card: Any) -> None:
    assert FULL_PRECISION in notes(Cnn)
    assert FULL_PRECISION not in notes(Cnn, "tf32")
    assert FULL_PRECISION not in notes(Mlp)
    card.capability = (7, 5)
    assert FULL_PRECISION not in notes(Cnn)


def test_nothing_is_told_of_convolutions_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeNvml([]).install(monkeypatch)
    assert FULL_PRECISION not in notes(Cnn)


def test_a_sweep_tells_it_too(card: Any, tmp_path: Path) -> None:
    config = SweepConfig.model_validate(
        {"experiment": "experiments.digits:Cnn", "space": {**SHAPES[Cnn], "lr": 0.1, "batch_size": 32}, "trials": 2}
        | {"metric": "accuracy", "epochs": 1, "runs_dir": str(tmp_path), "tracking": {"enabled": False}}
    )
    prepared = prepare(config, "cnn")
    assert FULL_PRECISION in problem(prepared, *find(prepared.config, Path.cwd())).notes
