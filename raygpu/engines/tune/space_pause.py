"""Tune callback that pauses a sweep while the disk of its folder is full."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray import tune

from raygpu.devices import disk
from raygpu.engines.cluster import ray_files
from raygpu.engines.tune.live_sweep import LiveSweep

MIB = 2**20


class SpacePause(tune.Callback):
    """Tune callback that waits for space before Tune takes results or writes its state; trials wait in workers."""

    def __init__(self, live: LiveSweep) -> None:
        self.live = live

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Wait while a disk is full, until there is space or Ctrl-C."""
        wait_for_space(self.live.folder, self.live.say, lambda: self.live.interrupts.count > 0)


def wait_for_space(folder: Path, say: Callable[[str], None], given_up: Callable[[], bool] = lambda: False) -> None:
    """Wait while the disk of a run's folder or of temporary files is full; say so, and when it goes on."""
    paths = [folder, Path(tempfile.gettempdir()), Path(ray_files.where())]
    if (found := disk.full(paths)) is None:
        return
    say(f"no space left on the disk of {found}: the run waits, and goes on once some MiB are free; Ctrl-C stops it")
    while not given_up():
        time.sleep(disk.POLL_S)
        if disk.full(paths) is None:
            return say("there is space again")
