"""Any function as a training: `train(config)` runs in a thread, and each `raygpu.report` yields an epoch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raygpu import reporting
from raygpu.training.base import Settings
from raygpu.trials import EpochResult, Trial


class _Ended(BaseException):
    """Raised inside the user's function, from `raygpu.report`, to end it; no `except Exception` catches it."""


class FunctionTraining:
    """A `Training` of a user's function, which goes on only while the next epoch is asked for.

    The function gets one dict: the hyper-parameters, and `epochs` and `seed` unless the space has its own.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], trial: Trial, settings: Settings) -> None:
        self.function = function
        self.epochs = settings.epochs
        self.epoch = 0
        self.config = {"seed": trial.seed, "epochs": settings.epochs, **trial.hyperparameters}
        self._channel = _Handover()
        self._thread = threading.Thread(target=self._run, name=trial.trial_id, daemon=True)
        self._started = self._ended = False

    def run_epoch(self) -> EpochResult | None:
        """Let the function go on to its next report; raises what it raises."""
        if self._ended or (self.epochs is not None and self.epoch >= self.epochs):
            return None
        if self._started:
            self._channel.go.release()
        else:
            self._started = True
            self._thread.start()
        result = self._channel.results.get()
        if isinstance(result, dict):
            self.epoch += 1
            return EpochResult(self.epoch, result)
        self._ended = True
        if result is not None:
            raise result
        return None

    def _run(self) -> None:
        reporting.use(self._channel)
        end: BaseException | None = None
        try:
            self.function(self.config)
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it, SystemExit too
            end = error
        self._channel.results.put(end)

    def save(self, folder: Path) -> None:
        reporting.dump_state((self.epoch, self._channel.state), folder)

    def load(self, folder: Path) -> None:
        """The function starts again at its beginning, and finds its state by `raygpu.load()`."""
        saved = reporting.load_state(folder)
        if saved is not None and saved[1] is not None:
            self.epoch, self._channel.state = saved

    def close(self) -> None:
        """End the function at the report where it waits."""
        if self._started and not self._ended:
            self._channel.closing = True
            self._channel.go.release()
            self._thread.join(timeout=30)
        reporting.use(None)


class _Handover:
    """The function's end of the channel: a report is handed over, then waits for `go`."""

    def __init__(self) -> None:
        self.results: queue.SimpleQueue[dict[str, float] | BaseException | None] = queue.SimpleQueue()
        self.go = threading.Semaphore(0)
        self.closing = False
        self.state: Any | None = None

    def report(self, metrics: dict[str, float]) -> None:
        self.results.put(metrics)
        self.go.acquire()
        if self.closing:
            raise _Ended

    def checkpoint(self, state: Any) -> None:
        self.state = state

    def load(self) -> Any | None:
        return self.state
