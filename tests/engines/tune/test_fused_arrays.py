"""From where an array that runs out of memory goes on; `test_out_of_memory.py` has whole sweeps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.tune.fused_arrays import FusedArrays
from raygpu.search.trials import Trial

TRIALS = [Trial("t0000", 0, {}), Trial("t0001", 1, {})]


class Made(FusedArrays):
    """An array of a test: it notes what it is loaded from."""

    loaded: list[str]

    def _make(self, trials: list[Trial]) -> Any:
        return SimpleNamespace(
            trials=trials,
            tiles=[SimpleNamespace(width=self.width or len(trials))],
            load=lambda folder: self.loaded.append((folder / "epoch").read_text()),
            save=lambda folder: (folder / "epoch").write_text("of its own"),
            close=lambda: None,
        )

    def _array_cache(self) -> Any:
        return None


@pytest.fixture
def arrays(monkeypatch: pytest.MonkeyPatch) -> Made:
    monkeypatch.setattr("raygpu.training.fused.width.settle", lambda *_: [])
    nothing: Any = SimpleNamespace()
    made = Made(nothing, None, None, nothing, SimpleNamespace(width=None, mean_epochs=1.0))  # type: ignore[arg-type]
    made.loaded = []
    return made


def test_without_a_checkpoint_it_begins_again(arrays: Made) -> None:
    arrays.begin(TRIALS)
    assert arrays.narrow()
    assert arrays.warnings == ["out of memory with 2 trials at once; goes on with 1 from the beginning"]
    arrays.current()
    assert arrays.loaded == []


@pytest.mark.parametrize("saved", [False, True])
def test_it_goes_on_from_its_last_checkpoint_also_from_one_of_a_lost_worker(
    arrays: Made, tmp_path: Path, saved: bool
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/epoch").write_text("of a lost worker")
    arrays.begin(TRIALS, tmp_path / "given")
    if saved:
        (tmp_path / "own").mkdir()
        arrays.save(tmp_path / "own")
    assert arrays.narrow()
    assert arrays.warnings == ["out of memory with 2 trials at once; goes on with 1 from its last checkpoint"]
    arrays.current()
    assert arrays.loaded == ["of a lost worker", "of its own" if saved else "of a lost worker"]
