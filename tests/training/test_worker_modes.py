"""Modes with which the trials of a worker begin."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from importlib.machinery import PathFinder
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
from tests.training.test_modes import modes


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
from raygpu.training.worker_modes import WorkerModes
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


SET_FLOATX = """
import keras
from raygpu.training.worker_modes import WorkerModes
modes = WorkerModes()
modes.note()
modes.restore()
keras.config.set_floatx("float64")
assert keras.layers.Dense(1).dtype == "float64"
modes.restore()
keras.config.set_floatx("float64")
assert keras.layers.Dense(1).dtype == "float64", "the first trial's policy is gone"
"""


def test_a_trial_may_set_the_type_of_kerass_layers() -> None:
    subprocess.run([sys.executable, "-c", SET_FLOATX], env=os.environ | {"KERAS_BACKEND": "torch"}, check=True)


def write(folder: Path, name: str, body: str = "import os\nos.environ['BY_' + __name__] = '1'\n") -> None:
    (folder / f"{name}.py").write_text(body)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker_modes: WorkerModes) -> Iterator[Path]:
    """A folder of modules, and no variables and modules of it afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    environment, imported = dict(os.environ), set(sys.modules)
    worker_modes.note()
    yield tmp_path
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name in set(sys.modules) - imported:
        if name.startswith("noted_"):
            del sys.modules[name]


def test_modules_of_one_archive_are_noted_each_by_itself(worker_modes: WorkerModes, folder: Path) -> None:
    with zipfile.ZipFile(folder / "both.zip", "w") as archive:
        archive.writestr("noted_one.py", "")
        archive.writestr("noted_two.py", "")
    sys.path.insert(0, str(folder / "both.zip"))
    try:
        importlib.import_module("noted_one")
        os.environ["BY_TRIAL"] = "1"
        importlib.import_module("noted_two")
    finally:
        sys.path.remove(str(folder / "both.zip"))
    worker_modes.restore()
    assert "BY_TRIAL" not in os.environ


def test_what_a_trial_sets_before_a_lazy_module_is_executed_is_the_trials(
    worker_modes: WorkerModes, folder: Path
) -> None:
    write(folder, "noted_lazy")
    spec = importlib.util.find_spec("noted_lazy")
    assert spec is not None
    assert spec.loader is not None
    loader = spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules["noted_lazy"] = module
    loader.exec_module(module)
    os.environ["BY_TRIAL"] = "1"
    assert module.os is os
    worker_modes.restore()
    assert ("BY_TRIAL" in os.environ, "BY_noted_lazy" in os.environ) == (False, True)


def test_what_a_trial_sets_while_another_thread_imports_is_the_trials(worker_modes: WorkerModes, folder: Path) -> None:
    write(folder, "noted_slow", "import threading\nbegun, goes_on = threading.Event(), threading.Event()\n")
    events = importlib.import_module("noted_slow")
    write(folder, "noted_waits", "import noted_slow\nnoted_slow.begun.set(); noted_slow.goes_on.wait(60)\n")
    thread = threading.Thread(target=importlib.import_module, args=("noted_waits",))
    thread.start()
    assert events.begun.wait(60)
    os.environ["BY_TRIAL"] = "1"
    torch.set_num_threads(torch.get_num_threads() + 1)
    before = torch.get_num_threads() - 1
    events.goes_on.set()
    thread.join()
    worker_modes.restore()
    assert ("BY_TRIAL" in os.environ, torch.get_num_threads()) == (False, before)


def test_modules_of_other_finders_are_noted_too(
    worker_modes: WorkerModes, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of setuptools' editable installations, which stand after Python's own."""

    class Editable:
        """Finder of modules in a folder that is not in sys.path."""

        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
            return PathFinder.find_spec(name, [str(folder / "editable")], target)

    (folder / "editable").mkdir()
    write(folder / "editable", "noted_editable")
    finders = [finder for finder in sys.meta_path if finder is not PathFinder]
    monkeypatch.setattr(sys, "meta_path", [*finders, Editable])
    importlib.import_module("noted_editable")
    worker_modes.restore()
    assert "BY_noted_editable" in os.environ
    monkeypatch.undo()


def test_what_an_import_that_fails_has_imported_is_noted(worker_modes: WorkerModes, folder: Path) -> None:
    write(folder, "noted_inner")
    write(folder, "noted_fails", "import noted_inner\nraise ImportError('no such device')\n")
    with pytest.raises(ImportError, match="no such device"):
        importlib.import_module("noted_fails")
    worker_modes.restore()
    assert "BY_noted_inner" in os.environ
