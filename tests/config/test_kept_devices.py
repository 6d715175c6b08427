"""A module that sets CUDA_VISIBLE_DEVICES undoes no worker's GPU."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raygpu.config import kept_devices
from raygpu.config.kept_devices import ASKS_NVML, VARIABLE, devices_lines
from raygpu.config.source import locate
from raygpu.errors import BadInput


@pytest.mark.parametrize("visible", ["GPU-2", None])
def test_a_module_that_chooses_a_gpu_changes_nothing(
    visible: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    if visible is not None:
        monkeypatch.setenv(VARIABLE, visible)
    (tmp_path / "mine.py").write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\ndef train(config): pass\ndef other(config): pass\n"
    )
    assert devices_lines("mine.py:train") == []
    monkeypatch.setattr(kept_devices, "_values", {})
    source, _ = locate("mine.py:train", tmp_path)
    assert os.environ.get(VARIABLE) == visible
    assert "sets CUDA_VISIBLE_DEVICES=0 while it is imported, which is undone" in devices_lines("mine.py:train")[0]
    source.resolve()
    assert os.environ.get(VARIABLE) == visible


def test_a_module_that_leaves_the_variable_has_no_line(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text("def train(config): pass\n")
    locate("quiet.py:train", tmp_path)
    assert devices_lines("quiet.py:train") == []


def test_a_module_that_uses_the_gpu_that_it_chose_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(kept_devices, "_values", {})
    monkeypatch.setenv(VARIABLE, "1")
    (tmp_path / "uses.py").write_text("import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'\ndef train(config): pass\n")
    with pytest.raises(BadInput, match=r"uses.py:train sets CUDA_VISIBLE_DEVICES and uses a GPU while it is imported"):
        locate("uses.py:train", tmp_path)
    assert os.environ[VARIABLE] == "1"


def test_a_module_that_asks_whether_there_is_a_gpu_asks_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA itself, once asked, would see the module's GPUs for good."""
    torch = pytest.importorskip("torch")
    monkeypatch.delenv(ASKS_NVML, raising=False)
    asked = list[bool]()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(torch.cuda._nvml_based_avail()))
    (tmp_path / "asks.py").write_text("import torch\ntorch.cuda.is_available()\ndef train(config): pass\n")
    locate("asks.py:train", tmp_path)
    assert asked == [True]
    assert ASKS_NVML not in os.environ
