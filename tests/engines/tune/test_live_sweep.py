"""What a sweep's searcher and callback share, where it is interrupted."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import pytest

from raygpu.engines.tune import sweep_checkpoints
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.records.trial_records import Records
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult, Trial
from tests.fakes.sweep import sweep_context


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (UnpicklingError("pickle data was truncated"), "UnpicklingError: pickle data was truncated"),
    ],
)
def test_an_interrupted_trial_s_parameters_that_cannot_be_read_or_written_are_told(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, told = Records(2, Scoring("accuracy", True), [], 5), list[str]()
    shares: Any = None
    config = SimpleNamespace(keep="all")
    live = LiveSweep(sweep_context(records, config=config, warn=told.append), shares, None, None)
    for index in range(2):
        name = Trial.name(index)
        records.start(Trial(name, 0, {}))
        records.add(name, [EpochResult(1, {"accuracy": 0.5})], None)
        live.checkpoints.arrays[name] = str(tmp_path / f"array{index}")
        (tmp_path / f"array{index}").mkdir()

    def extract(checkpoint: Path, folders: Mapping[str, Path]) -> None:
        if checkpoint.name == "array0":
            raise error

    monkeypatch.setattr(sweep_checkpoints, "extract", extract)
    folder = tmp_path / "extracted"
    assert live.interrupted(folder, keep_all=True) == {"t0001": str(folder / "t0001")}
    assert [path.name for path in folder.iterdir()] == ["t0001"]
    assert told == [f"t0000: parameters so far are not kept: {said}"]
