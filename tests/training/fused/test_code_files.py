"""The code of an array is known by its files, also those of installed packages, as they were when it was imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from raygpu.config.source import Source
from raygpu.training.fused.code_files import CodeFiles
from tests.models import Mlp

EXPERIMENT = """
from raygpu import TorchExperiment
from lab_of_a_key import losses
from lab_of_a_key.models import Net

class Mine(TorchExperiment):
    def data(self):
        raise NotImplementedError

    def model(self, hp):
        return Net()

    def loss(self, outputs, targets):
        return losses.loss(outputs, targets)
"""


class Given(Mlp):
    """Its model is another module's."""

    def __init__(self, net: type[nn.Module]) -> None:
        super().__init__()
        self.net = net

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return self.net()


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install a package with a model and a loss, and write an experiment that uses it."""
    package = tmp_path / "site-packages" / "lab_of_a_key"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text(
        "from torch import nn\nclass Net(nn.Linear):\n    def __init__(s): super().__init__(4, 2)\n"
    )
    (package / "losses.py").write_text("SMOOTHING = 0.1\ndef loss(outputs, targets): ...\n")
    (tmp_path / "experiment_of_a_key.py").write_text(EXPERIMENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    yield package
    forget()


def forget() -> None:
    """Let the next import be as that of another process."""
    for name in [name for name in sys.modules if name.endswith("_of_a_key") or name.startswith("lab_of_a_key")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def resolved(folder: Path) -> Any:
    return Source("torch", "experiment_of_a_key:Mine", str(folder)).resolve()


def written(path: Path, text: str) -> None:
    path.write_text(text)
    os.utime(path, (1, 1 + path.stat().st_mtime))


@pytest.mark.parametrize("name", ["models.py", "losses.py"])
def test_an_installed_module_that_the_experiment_uses_is_in_the_digest(lab: Path, name: str) -> None:
    experiment = resolved(lab.parents[1])
    files = CodeFiles.of(experiment, experiment.model({}))
    assert files is not None
    assert {str(lab / "models.py"), str(lab / "losses.py")} < {file for file, _ in files.digests}
    assert CodeFiles.of(experiment, experiment.model({})) == files
    written(lab / name, (lab / name).read_text() + "# more\n")
    assert not files.are_unchanged()
    assert CodeFiles.of(experiment, experiment.model({})) is None, "the code in memory is that of the old file"


def test_a_module_of_the_users_that_changes_after_its_import_leaves_no_digest(lab: Path) -> None:
    experiment = resolved(lab.parents[1])
    written(lab.parents[1] / "experiment_of_a_key.py", EXPERIMENT + "# more\n")
    assert CodeFiles.of(experiment, experiment.model({})) is None


def test_a_package_without_a_version_is_known_by_its_modules(lab: Path) -> None:
    experiment = resolved(lab.parents[1])
    files = CodeFiles.of(experiment, experiment.model({}))
    assert files is not None
    assert [each for each in files.versions if each.startswith("lab_of_a_key ") and "losses.py" in each]


def test_a_package_with_a_version_is_known_by_it() -> None:
    files = CodeFiles.of(Mlp(), nn.Linear(4, 2))
    assert files is not None
    assert [each for each in files.versions if each.startswith("numpy 2") or each.startswith("numpy 1")]


def test_a_class_in_no_file_has_no_digest() -> None:
    variables: dict[str, Any] = {"nn": nn, "__name__": "in_no_file"}
    exec("class Net(nn.Linear):\n    def __init__(self): super().__init__(4, 2)", variables)
    experiment = Given(variables["Net"])
    assert CodeFiles.of(experiment, experiment.model({})) is None
