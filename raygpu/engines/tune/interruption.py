"""Ctrl-C and SIGTERM of a sweep, the end of its time budget, and its stop without hope: each running trial is paused
with a checkpoint, and then Tune is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import tune

from raygpu.engines.cluster import ray_environment, ray_private_api
from raygpu.engines.cluster.cluster import SETTLE_S, lost
from raygpu.engines.tune.live_sweep import LiveSweep
from raygpu.records.interrupts import noted_interrupts

PATIENCE_S = 20.0
"""Seconds that trials have for their checkpoints: Kubernetes kills 30 s after SIGTERM. A trial whose epoch takes longer
goes on from its last checkpoint."""
WATCH_S = 0.1
OWN_HANDLER = "TUNE_DISABLE_SIGINT_HANDLER"
"""Variable that keeps Tune from handling SIGINT."""


@contextmanager
def checkpoints_first(live: LiveSweep) -> Iterator[None]:
    """Note the first Ctrl-C or SIGTERM inside for `Interruption`; a second one raises KeyboardInterrupt."""
    over = threading.Event()
    watch = threading.Thread(target=_watch_ray, args=(live, over), name="ray-watch", daemon=True)
    with ray_environment.variable(OWN_HANDLER, "1"), noted_interrupts() as live.interrupts:
        watch.start()
        try:
            yield
        finally:
            over.set()
            watch.join()


def _watch_ray(live: LiveSweep, over: threading.Event) -> None:
    """End the sweep without a Ray that has ended: by the signal of an interrupt, which systemd sends to all, or since
    its raylet or head was killed, as for the host's lack of memory.

    Tune's thread waits for Ray in a call that no signal ends, and where none is handled, until Ray ends the whole
    process after a minute.
    """
    servers = ray_private_api.servers()
    while not over.wait(WATCH_S):
        if live.interrupts.has_arrived() and live.cluster.is_ending():
            live.warn("Ray was ended, too; running trials go on from their last checkpoints")
            live.leave(live.checkpoints.own)
        elif (name := lost(servers)) is not None:
            live.warn(f"Ray's {name} was ended by others; running trials go on from their last checkpoints")
            live.leave(live.checkpoints.own)


class Interruption(tune.Callback):
    """Tune callback that stops Tune if the sweep is to stop, once every trial that ran has been paused or has ended."""

    def __init__(self, live: LiveSweep) -> None:
        self.live = live
        self._deadline: float | None = None
        """Time at which Tune is stopped at the latest, by the monotonic clock; None before an interrupt."""

    def on_step_begin(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Begin to wait once the sweep is to stop; let Tune end once no trial is waited for, or time is up."""
        if not self.live.stopping:
            return
        running = any(trial.status == "RUNNING" and self._is_awaited(trial) for trial in trials)
        if self._deadline is None:
            self._deadline = time.monotonic() + PATIENCE_S
            if self.live.interrupts.count:
                time.sleep(SETTLE_S)
            if running:
                why = "time_budget_s is used up: " if self.live.records.out_of_time else ""
                again = "; Ctrl-C again stops without" if self.live.interrupts.count else ""
                self.live.warn(f"{why}stopping after a checkpoint of each running trial{again}")
        if not running or time.monotonic() >= self._deadline:
            self.live.is_over = True

    def _is_awaited(self, trial: Any) -> bool:
        """Return whether the sweep waits for a running trial's checkpoint; Tune starts those that it has staged, too.

        One without a result has nothing to save yet, and a time budget is not exceeded for it.
        """
        records = self.live.records
        return not records.out_of_time or not records.any_scored() or trial.has_reported_at_least_once
