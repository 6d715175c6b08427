"""Tune callback that pauses a sweep while the disk of its folder is full."""

from __future__ import annotations

from typing import Any

from ray import tune

from raygpu.devices import disk
from raygpu.engines.cluster import ray_files
from raygpu.engines.tune.live_sweep import LiveSweep


class SpacePause(tune.Callback):
    """Tune callback that waits for space before Tune takes results or writes its state; trials wait in workers."""

    def __init__(self, live: LiveSweep) -> None:
        self.live = live

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Wait while a disk is full, until there is space or Ctrl-C."""
        live = self.live
        disk.wait_and_say(ray_files.disks(live.run_directory.path), live.warn, lambda: live.interrupts.count > 0)
