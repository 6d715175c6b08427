"""A sweep whose disk is full for a while: it waits, says so, and loses nothing."""

from __future__ import annotations

import io
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raygpu import sweep
from raygpu.cli.sweep_view import SweepConsole

FULL_S = 8.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_for_a_while(disk: Path, began: threading.Event) -> None:
    while not list(disk.glob("test/tune/*/checkpoint*")):
        time.sleep(0.1)
    with (disk / "filler").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**16))
        except OSError:
            began.set()
    time.sleep(FULL_S)
    (disk / "filler").unlink()


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
    full, shown = threading.Event(), io.StringIO()
    filler = threading.Thread(target=fill_for_a_while, args=(small_disk, full), daemon=True)
    filler.start()
    result = sweep.run(config, console=SweepConsole(stream=shown))
    filler.join()
    assert full.is_set()
    assert f"no space left on the disk of {small_disk / 'test'}" in shown.getvalue()
    assert "there is space again" in shown.getvalue()
    assert (result.summary["completed"], result.summary["failed"], result.summary["retries"]) == (2, 0, 0)
    assert (result.summary["tracking"]["undelivered"], result.exit_code) == (0, 0)
