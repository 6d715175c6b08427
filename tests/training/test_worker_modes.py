"""Modes with which the trials of a worker begin."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import raygpu
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.callable.function import FunctionTraining
from raygpu.training.modes import torch_modes_kept
from raygpu.training.worker_modes import WorkerModes
from tests.forks import faults_in_forks
from tests.training.test_modes import modes


@pytest.fixture(autouse=True)
def kept() -> Iterator[None]:
    with torch_modes_kept():
        yield


def test_a_trial_does_not_find_what_another_trial_has_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EARLIER", "1")
    monkeypatch.delenv("BY_TRIAL", raising=False)
    worker_modes = WorkerModes()
    worker_modes.note()
    before, threads = modes(), list[int]()

    def train(config: dict[str, Any]) -> None:
        """Set modes in the first trial alone."""
        if config["sets"]:
            torch.set_default_dtype(torch.float64)
            torch.set_num_threads(torch.get_num_threads() + 1)
            torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
            os.environ.update(BY_TRIAL="1", EARLIER="2")
        threads.append(torch.get_num_threads())
        raygpu.report(score=1)

    for sets in (True, False):
        worker_modes.restore()
        training = FunctionTraining(train, Trial("t0", 0, {"sets": sets}), Settings(1, 1, "float32", tmp_path))
        training.run_epoch()
        training.close()
    assert threads[0] == threads[1] + 1
    assert modes() == before
    assert (os.environ["EARLIER"], os.environ.pop("BY_TRIAL")) == ("1", "1")


NOTED_BEFORE_THE_IMPORT = """
from raygpu.training.worker_modes import WorkerModes
modes = WorkerModes()
modes.note()
import torch, keras
"""
STREAMS = """
import io, logging, sys, warnings
modes = WorkerModes()
modes.note()
before = sys.stdout, sys.stderr, list(warnings.filters)
for _ in range(2):
    modes.restore()
    assert (sys.stdout, sys.stderr, warnings.filters) == before and logging.getLogger().isEnabledFor(logging.ERROR)
    caught = []
    logging.getLogger("py.warnings").handle = caught.append
    logging.captureWarnings(True)
    warnings.warn("told")
    assert len(caught) == 1
    sys.stdout = sys.stderr = io.StringIO()
    sys.stdout.close()
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
modes.restore()
"""
UNSAFE = """
keras.config.enable_unsafe_deserialization()  # as the user's file does
modes = WorkerModes()
modes.note()
for _ in range(2):
    modes.restore()
    keras.layers.Lambda.from_config(keras.layers.Lambda(lambda x: 2 * x).get_config())
    keras.utils.clear_session()  # at the end of a trial
"""
IMPORTED_LATER = """
modes.restore()
before = torch.get_float32_matmul_precision(), torch.get_default_dtype()
torch.set_float32_matmul_precision("high")
torch.set_default_dtype(torch.float64)
torch.backends.cudnn.benchmark = True
keras.mixed_precision.set_global_policy("mixed_bfloat16")
modes.restore()
assert before == (torch.get_float32_matmul_precision(), torch.get_default_dtype())
assert not torch.backends.cudnn.benchmark and keras.layers.Dense(1).compute_dtype == "float32"
"""
SET_FLOATX = """
modes = WorkerModes()
modes.note()
modes.restore()
keras.config.set_floatx("float64")
assert keras.layers.Dense(1).dtype == "float64"
modes.restore()
keras.config.set_floatx("float64")
assert keras.layers.Dense(1).dtype == "float64", "the first trial's policy is gone"
"""


def test_modes_of_what_a_trial_imports_and_those_of_keras_are_restored() -> None:
    pieces = {"imported later": IMPORTED_LATER, "the type of layers": SET_FLOATX, "unsafe": UNSAFE}
    pieces["streams"] = STREAMS
    assert faults_in_forks(NOTED_BEFORE_THE_IMPORT, pieces, os.environ | {"KERAS_BACKEND": "torch"}) == []
