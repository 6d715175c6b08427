"""A user's function as a production training on one device: each `raygpu.report` ends an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from raygpu.errors import one_line
from raygpu.records.training_progress import ControlRequest, Progress
from raygpu.search.scoring import Scoring
from raygpu.search.trials import EpochResult
from raygpu.training.callable.function import SAVES_LATE, FunctionTraining


class FunctionRank:
    """A function's training as the only rank of a production training.

    raygpu does not run its loop, so batches, learning rate and samples/s are not known.
    """

    def __init__(self, training: FunctionTraining, scoring: Scoring, request: Callable[[], ControlRequest]) -> None:
        """Take over a training that has not begun. request: called at each report."""
        self._training, self._scoring, self._request = training, scoring, request
        self._metric_is_known = False
        self.notes: list[str] = []

    @property
    def epoch(self) -> int:
        """Number of reports so far, with those before the checkpoint that was loaded."""
        return self._training.epoch

    def advance(self) -> Progress | None:
        """Let the function go on to its next report; return None once it has ended, or made all of its reports.

        Raises any exception of the function, UnknownMetric if its first report lacks the configured metric, and
        RuntimeError if it ends without a report.
        """
        started = time.perf_counter()
        result = self._next()
        if self._training.saves_late and SAVES_LATE not in self.notes:
            self.notes.append(SAVES_LATE)
        if result is None:
            return None
        wall_s = time.perf_counter() - started
        if not self._metric_is_known:
            self._scoring.key(result.metrics)
            self._metric_is_known = True
        return Progress(
            epoch=result.epoch,
            step=1,
            steps=1,
            lr=None,
            wall_s=wall_s,
            samples=(),
            rates=(),
            shares=(),
            noise=None,
            request=self._request(),
            result=result,
            diverged=self._scoring.diverged(result.metrics),
        )

    def _next(self) -> EpochResult | None:
        try:
            result = self._training.run_epoch()
        except SystemExit as error:  # which would end Ray's worker without a word
            raise RuntimeError(f"the function has called sys.exit({error.code!r})") from error
        except Exception:
            raise
        except BaseException as error:  # KeyboardInterrupt is no person's Ctrl-C here
            raise RuntimeError(f"the function has raised {one_line(error)}") from error
        if result is None and not self.epoch:
            raise RuntimeError("the function ended without a metric: call raygpu.report(...), or return a dict")
        return result

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Write the state of the function's last `raygpu.checkpoint`, if there is one, at once; return a function that
        does nothing."""
        self._training.save(folder)
        return lambda: None

    def load(self, folder: Path) -> None:
        """Take in a saved state; without one, the function begins again. Called before the first `advance`."""
        self._training.load(folder)
        self._metric_is_known = self.epoch > 0

    def load_parameters(self, folder: Path) -> None:
        """Raise ValueError: a function's state holds more than parameters."""
        raise ValueError("a function's checkpoint is its own state; it cannot begin with a trial's parameters")

    def close(self) -> None:
        """End the function at the report where it waits."""
        self._training.close()
