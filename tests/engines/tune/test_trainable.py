"""A worker: its note for `raygpu gpus`, and what one trial leaves to the next."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from raygpu.engines.tune import trainable
from raygpu.engines.tune.array_config import ArrayConfig
from raygpu.engines.tune.member_results import MemberResults
from raygpu.engines.tune.shared_settings import SharedSettings
from raygpu.engines.tune.trainable import ArrayTrainable
from raygpu.planning.gpu_shares import Share
from raygpu.planning.training_need import Need
from raygpu.records import activity
from raygpu.search.patience import Patience, WithPatience, reasons
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult
from raygpu.training.modes import torch_modes_kept
from raygpu.training.worker_modes import WorkerModes


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
        shared.activity = partial(SharedSettings.activity, shared)
        worker = SimpleNamespace(shared=shared, array_config=config, _under_way=list)
        ArrayTrainable._note_activity(worker)  # type: ignore[arg-type]
        noted = activity.living()[os.getpid()]
        assert (noted.run, noted.trials, noted.share, noted.need) == ("digits-1", ("t0001",), 0.25, expected)
        assert expected is None or expected.way == way


def test_a_trial_does_not_find_the_modes_and_the_folder_of_an_earlier_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # and back at the end
    found = []

    def arrays_of(*_: object) -> SimpleNamespace:
        found.append((torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), Path.cwd()))
        os.chdir("/")
        torch.set_default_dtype(torch.float64)
        torch.set_autocast_enabled("cpu", True)
        return SimpleNamespace(seconds={}, spend=lambda **_: None)

    monkeypatch.setattr(trainable, "arrays_of", arrays_of)
    source = SimpleNamespace(kind="torch", resolve=object, folder=str(tmp_path))
    worker = SimpleNamespace(
        shared=SimpleNamespace(source=source),
        cap=SimpleNamespace(set=lambda share: None),
        array_config=ArrayConfig("t0001", ("t0001",), False, "L4", Share(4)),
        code=None,
        splits=None,
        trials=[],
        _modes=WorkerModes(),
        _note_activity=lambda: None,
    )
    with torch_modes_kept():
        for _ in range(2):
            ArrayTrainable._begin(worker)  # type: ignore[arg-type]
    assert found == [(torch.float32, False, tmp_path)] * 2


def test_patience_waits_for_an_epoch_that_has_the_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function reports its loss in every epoch, and the metric in each fifth one."""
    scoring = Scoring("accuracy", maximize=True)
    rule = WithPatience(None, Patience(3, 0.0, 1, maximize=True))

    def stopped_by(_: object, epoch: int, scores: Any, stale: Any, reason: str) -> dict[str, str | None]:
        """Ask the rule in this process."""
        return dict(reasons(rule, epoch, scores, stale))

    monkeypatch.setattr(trainable, "stopped_by", stopped_by)
    kept = MemberResults(scoring, ["t0000"], keep_all=False)
    worker = SimpleNamespace(shared=SimpleNamespace(rule=rule, decision_epochs=None, stop_reason="rule"), kept=kept)
    stopped = []
    for epoch in range(1, 17):
        metrics = {"loss": 1.0} | ({"accuracy": min(epoch, 6) / 10} if epoch % 5 == 1 else {})
        kept.take("t0000", EpochResult(epoch, metrics), SimpleNamespace())  # type: ignore[arg-type]
        if ArrayTrainable._stopped(worker, epoch, ["t0000"]):  # type: ignore[arg-type]
            stopped.append(epoch)
    assert stopped == [11, 16], "the metric is best at epoch 6; the sweep would have ended the trial at epoch 11"
