"""Files of loaded modules are noted without loading those that wait for their first use."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

import pytest

from raygpu.config.imported_files import has_changed, note_files


def test_a_module_that_waits_for_its_first_use_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "waits.py").write_text("raise OSError('no such library')\n")
    loader = importlib.util.LazyLoader(importlib.machinery.SourceFileLoader("waits", str(tmp_path / "waits.py")))
    spec = importlib.util.spec_from_loader("waits", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "waits", module)
    loader.exec_module(module)
    note_files()
    with pytest.raises(OSError, match="no such library"):
        _ = module.anything


def test_a_file_that_was_written_to_since_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "noted_here.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module("noted_here")
    note_files()
    assert not has_changed(str(tmp_path / "noted_here.py"))
    (tmp_path / "noted_here.py").write_text("later = 1\n")
    assert has_changed(str(tmp_path / "noted_here.py"))
    monkeypatch.delitem(sys.modules, "noted_here")
