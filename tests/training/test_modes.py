"""Modes of torch that hold for a whole process."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raygpu
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.function import FunctionTraining
from raygpu.training.fused.dry_run import names_read
from raygpu.training.modes import WorkerModes, torch_modes_kept
from tests.contracts.zoo.entry import Vectors, mlp

SETTERS: dict[str, Callable[[], Any]] = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "cudnn": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "attention": lambda: torch.backends.mha.set_fastpath_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "products": lambda: torch.set_float32_matmul_precision("high"),
    "products, newer": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "convolutions": lambda: setattr(torch.backends.cudnn, "allow_tf32", not torch.backends.cudnn.allow_tf32),
    "all, newer": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "convolutions, newer": lambda: setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),
}


def modes() -> list[Any]:
    return [
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.get_num_threads(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
    ]


@pytest.mark.parametrize("name", SETTERS)
def test_modes_are_restored(name: str) -> None:
    before = modes()
    with torch_modes_kept():
        SETTERS[name]()
        assert modes() != before
    assert modes() == before


@pytest.fixture
def worker_modes() -> Iterator[WorkerModes]:
    modes = WorkerModes()
    with torch_modes_kept():
        yield modes
    modes.close()


def test_a_trial_finds_what_an_import_has_set_and_not_what_another_trial_has(
    worker_modes: WorkerModes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets_modes.py").write_text(
        "import os, torch\ntorch.set_float32_matmul_precision('high')\nos.environ['BY_IMPORT'] = '1'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("EARLIER", "1")
    monkeypatch.delenv("BY_IMPORT", raising=False)
    worker_modes.note()
    before = modes()

    def train(config: dict[str, Any]) -> None:
        """Set modes in the first trial alone."""
        importlib.import_module("sets_modes")
        if config["sets"]:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(torch.get_num_threads() + 1)
            torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
            os.environ.update(BY_TRIAL="1", EARLIER="2")
        threads.append(torch.get_num_threads())
        raygpu.report(score=1)

    threads: list[int] = []
    for sets in (True, False):
        worker_modes.restore()
        training = FunctionTraining(train, Trial("t0", 0, {"sets": sets}), Settings(1, 1, "float32", tmp_path))
        training.run_epoch()
        training.close()
    assert torch.get_float32_matmul_precision() == "high"
    assert threads[0] == threads[1] + 1
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "none"
    assert modes() == before
    assert (os.environ["BY_IMPORT"], os.environ["EARLIER"], "BY_TRIAL" in os.environ) == ("1", "1", False)


IMPORTED_LATER = """
from raygpu.training.modes import WorkerModes
modes = WorkerModes()
modes.note()
import {first}, {second}
before = torch.get_num_threads(), torch.get_float32_matmul_precision(), keras.config.floatx()
modes.restore()
torch.set_num_threads(before[0] + 1)
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.benchmark = True
keras.mixed_precision.set_global_policy("mixed_bfloat16")
keras.config.set_floatx("float64")
modes.restore()
assert before == (torch.get_num_threads(), torch.get_float32_matmul_precision(), keras.config.floatx())
assert not torch.backends.cudnn.benchmark and keras.config.dtype_policy().name == "float32"
"""


@pytest.mark.parametrize("first", ["torch", "keras"])
def test_modes_of_what_a_trial_imports_are_restored_too(first: str) -> None:
    """Keras imports torch here."""
    code = IMPORTED_LATER.format(first=first, second="keras" if first == "torch" else "torch")
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"KERAS_BACKEND": "torch"}, check=True)


class Double(Vectors, base=True):
    """A model that asks for another precision of everything that is made later."""

    def model(self, hp: Any) -> nn.Module:
        torch.set_default_dtype(torch.float64)
        return nn.Sequential(nn.Flatten(), mlp(nn.ReLU()).float())


def test_a_look_at_an_experiment_leaves_the_modes_alone() -> None:
    before = modes()
    names_read(Double(), Trial("t0", 0, {"batch_size": 4}), Double().data())
    assert modes() == before
