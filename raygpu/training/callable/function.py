"""Any function as a training: `train(config)` runs in a thread, and each `raygpu.report` yields an epoch."""

from __future__ import annotations

import contextvars
import copy
import os
import pickle
import queue
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from raygpu import reporting
from raygpu.reporting import OTHER_PROCESS, Kept
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, Training
from raygpu.training.modes import thread_modes

SAVES_LATE = (
    "the function's state is saved after each report, and counts as that of the next one: the state that is kept of an"
    " epoch is that of the epoch before, and a training that goes on from it trains an epoch again and ends one short;"
    " call raygpu.checkpoint before raygpu.report"
)


class _Ended(BaseException):
    """Raised inside the user's function, from `raygpu.report`, to end it; no `except Exception` catches it."""


class FunctionTraining(Training):
    """Training of a user's function, which runs only while the next epoch is asked for.

    The function gets one dict: the hyper-parameters, and `epochs` and `seed`, in a cross-validation `fold` and `folds`
    too, unless the space has its own. `fold` is None where the best trial of one is trained again. Its lists and dicts
    are copies, which the function may change. Metrics that it returns are its one report, if it has made none.
    """

    def __init__(self, function: Callable[[dict[str, Any]], Any], trial: Trial, settings: Settings) -> None:
        self.function = function
        self.epochs = settings.epochs
        self.epoch = 0
        folds = {"fold": trial.fold, "folds": settings.folds} if settings.folds is not None else {}
        values = copy.deepcopy(dict(trial.hyperparameters))  # trials that draw the same list have one object
        self.config = {"seed": trial.seed, "epochs": settings.epochs, **folds, **values}
        self._channel = _Handover()
        # What the function's module has set, as the default device, holds for the thread that imported it alone.
        self._set_modes, context = thread_modes(), contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=[self._run], name=trial.trial_id, daemon=True)
        self._started = self._ended = False
        self._first = 0
        """Number of reports before this start."""
        self._earlier = {self._thread, *threading.enumerate()}

    def run_epoch(self) -> EpochResult | None:
        """Let the function go on to its next report. Raises any exception of the function."""
        if self._ended or (self.epochs is not None and self.epoch >= self.epochs):
            return None
        if self._started:
            self._channel.go.release()
        else:
            self._started = True
            self._thread.start()
        metrics = self._next()
        if metrics is None:
            return None
        self.epoch += 1
        if self.epoch == self.epochs:
            # What comes after the last report, as saving a model, belongs to it; one more report ends the function.
            self._channel.closing = True
            self._channel.go.release()
            self._next()
        return EpochResult(self.epoch, metrics)

    def _next(self) -> dict[str, float] | None:
        """Wait for the next report; return None at the function's end. Raises any exception of the function."""
        result = self._channel.results.get()
        if isinstance(result, dict):
            return result
        self._ended = True
        if result is not None:
            raise result
        return None

    def _run(self) -> None:
        reporting.use(self._channel)
        end: BaseException | None = None
        try:
            self._set_modes()
            self._take_returned(self.function(self.config))
        except _Ended:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for it, SystemExit too
            if self._channel.is_forked and not isinstance(error, SystemExit):
                traceback.print_exc()  # nobody in this process waits for it
                os._exit(1)
            if not self._has_exited_well(error):
                end = error
        self._channel.results.put(end)

    def _has_exited_well(self, error: BaseException) -> bool:
        """Return whether the function has reported and ended by `sys.exit()`, as a script ends well."""
        return isinstance(error, SystemExit) and error.code in (None, 0) and self._channel.num_reports > 0

    def _take_returned(self, returned: Any) -> None:
        """Report the metrics that the function returns, if it has reported none. Raises TypeError for a value that is
        no mapping, as of a generator or a coroutine."""
        if returned is None or self._channel.num_reports:
            return
        if not isinstance(returned, Mapping):
            kind = type(returned).__name__
            raise TypeError(f"it returned a {kind} and reported nothing: call raygpu.report(...), or return a dict")
        reporting.report(**returned)

    def save(self, folder: Path) -> None:
        """Write the state of the function's last `raygpu.checkpoint`, if there is one. One after the last report is of
        that report's epoch."""
        state = self._channel.kept
        if state is not None:
            at_end = state.epoch > self.epoch
            replace(state, epoch=self.epoch if at_end else state.epoch, at_end=at_end or state.at_end).dump(folder)

    def has_saved(self, epoch: int) -> bool:
        """Return whether the state that `save` writes is of this epoch, the last one that has ended."""
        state = self._channel.kept
        return state is not None and state.is_of(epoch, self.epochs)

    @property
    def saves_late(self) -> bool:
        """Whether the function has saved a state after each of its reports, and none before the first one: each counts
        as that of the next epoch. Of a function that waits in a report, as one that is stopped, this is not known
        before the third one."""
        num_reports, saved_after = self._channel.num_reports, self._channel.saved_after
        between = set(range(self._first + 1, num_reports))
        is_known = len(between) > 1 or (len(between) == 1 and num_reports in saved_after)
        return is_known and self._first not in saved_after and between <= saved_after

    def load(self, folder: Path) -> None:
        """Take in a saved state: the function starts again at its beginning, and gets the state by `raygpu.load()`."""
        state = Kept.load(folder)
        if state is not None:
            self.epoch = self._channel.num_reports = self._first = state.epoch
            self._channel.kept = state

    def close(self) -> None:
        """End the function at the report where it waits, and its other threads at their next one."""
        self._channel.closing = True
        if self._started and not self._ended:
            self._channel.ending = True
            self._channel.go.release()
            self._thread.join(timeout=30)
        reporting.leave(self._channel, set(threading.enumerate()) - self._earlier)


class _Handover:
    """The function's end of the channel: it hands over a report, then waits for `go`."""

    def __init__(self) -> None:
        self.results: queue.SimpleQueue[dict[str, float] | BaseException | None] = queue.SimpleQueue()
        self.go = threading.Semaphore(0)
        self.closing = False
        """Whether the next report ends the function."""
        self.ending = False
        """Whether the report that waits ends the function."""
        self.num_reports = 0
        self.kept: Kept | None = None
        self.saved_after: set[int] = set()
        """Numbers of reports after which a state was saved."""
        self._pid = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this is the copy of a process that the function has forked, which nobody hears."""
        return os.getpid() != self._pid

    def report(self, metrics: dict[str, float]) -> None:
        """Hand the metrics over and wait for the next epoch. Raises _Ended to end the function, and RuntimeError in a
        process that it has forked."""
        if self.is_forked:
            raise RuntimeError(OTHER_PROCESS)
        if self.closing:
            raise _Ended
        self.num_reports += 1
        self.results.put(metrics)
        self.go.acquire()
        if self.ending:
            raise _Ended

    def checkpoint(self, state: Any) -> None:
        """Pickle the state and keep it for `save`. Raises RuntimeError in a process that the function has forked."""
        if self.is_forked:
            raise RuntimeError(OTHER_PROCESS)
        self.kept = Kept.of(state, self.num_reports)
        self.saved_after.add(self.num_reports)

    def load(self) -> Any | None:
        """Return the kept state; None without one."""
        return None if self.kept is None else pickle.loads(self.kept.state)
