"""The notebooks run from their first cell to their last one, in a kernel of their own and a folder with nothing but a
new MLflow store."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_shows_its_result(
    path: Path, new_store: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    new_store(tmp_path / "runs")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not any(output.output_type == "error" for output in outputs)
    assert any(output.output_type == "display_data" for output in outputs), "the live table"
    assert any(output.output_type == "execute_result" and "text/html" in output.data for output in outputs)
    assert any((tmp_path / "runs").glob("*/summary.json")), "runs are in the notebook's folder"


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_sweep", "to_production"]
