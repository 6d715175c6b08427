"""A sweep whose disk is full for a while: it waits, says so, and loses nothing."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole
from raygpu.errors import RaygpuError
from raygpu.records.run_directory import RunDirectory
from tests.full_disk import fill_for_a_while


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["process", "fused"])
def test_a_sweep_waits_for_space(sweep_config: Any, ray_address: str, small_disk: Path, mode: str) -> None:
    config = sweep_config(
        experiment="experiments.digits:Mlp",
        epochs=300,
        metric="accuracy",
        space={"lr": {"uniform": [0.01, 0.1]}, "hidden": 32},
        gpu={"fraction": 0.5, "mode": mode},
        checkpoint_s=0.5,
        runs_dir=str(small_disk),
        cluster={"address": ray_address, "max_failures": 0},
    )
    shown = io.StringIO()
    filler, full = fill_for_a_while(small_disk, lambda: list(small_disk.glob("test/tune/*/checkpoint*")))
    result = sweep.run(config, console=SweepConsole(stream=shown))
    filler.join(timeout=60)
    assert full.is_set()
    assert f"no space left on the disk of {small_disk / 'test'}" in shown.getvalue()
    assert "there is space again" in shown.getvalue()
    assert (result.summary["completed"], result.summary["failed"], result.summary["retries"]) == (2, 0, 0)
    assert (result.summary["tracking"]["undelivered"], result.exit_code) == (0, 0)


def test_a_run_folder_that_cannot_be_written_is_not_left(
    sweep_config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RunDirectory, "write_config", full)
    with pytest.raises(RaygpuError, match=r"runs/test cannot be written: .*No space left on device"):
        sweep.run(sweep_config(experiment="tests.cases:ramp"), console=SweepConsole(stream=io.StringIO()))
    assert not (tmp_path / "runs" / "test").exists()
