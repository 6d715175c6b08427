"""The note of a worker for `raygpu gpus`."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.planning.gpu_shares import Share
from raygpu.planning.training_need import Need
from raygpu.records import activity


@pytest.mark.parametrize(("fused", "way"), [(False, "process"), (True, "fused")])
def test_a_note_has_the_need_of_its_device_and_kind(
    fused: bool, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    needs = {
        ("A100", shared): Need("fused" if shared else "process", "A100", 40.0, 4, "measured up to 4", None, None)
        for shared in (False, True)
    }
    shared = SimpleNamespace(needs=needs, run="digits-1")
    for device, expected in (("A100", needs["A100", fused]), ("L4", None)):
        config = ArrayConfig("t0001", ("t0001",), fused, device, Share(4))
        worker = SimpleNamespace(shared=shared, array_config=config, _under_way=list)
        ArrayTrainable._note_activity(worker)  # type: ignore[arg-type]
        noted = activity.living()[os.getpid()]
        assert (noted.run, noted.trials, noted.share, noted.need) == ("digits-1", ("t0001",), 0.25, expected)
        assert expected is None or expected.way == way
