"""The time left of a production training, from the moments of its reports. Without a clock of its own."""

from __future__ import annotations

from collections import deque
from statistics import fmean

RECENT = 20
"""Number of the last epochs by which the others are estimated."""


class TrainingPace:
    """The seconds that epochs take, with evaluation and checkpoints, and those that are left.

    The first epoch after a start of the workers warms up what the others find ready, so it counts only until another
    one has ended.
    """

    def __init__(self) -> None:
        self._epochs_s: deque[float] = deque(maxlen=RECENT)
        self._first_s: float | None = None
        """Seconds of the first epoch, from the workers' start."""
        self._since: float | None = None
        """Moment at which the epoch that runs began."""
        self._warm = False
        """Whether the workers have ended an epoch since they started."""
        self._steps: tuple[float, float] | None = None
        """Moment of the first report within the epoch that runs, and the part of the epoch that was done then."""
        self._last: tuple[float, float] | None = None
        """Moment of the last report, and the part of the running epoch that was done then."""

    def start(self, now: float) -> None:
        """Note that the workers have started, for the first time or after a loss."""
        self._since, self._warm, self._steps, self._last = now, False, None, None

    def step(self, now: float, step: int, steps: int) -> None:
        """Note that so many of the epoch's steps are done."""
        done = step / steps
        if self._steps is None or done < self._steps[1]:
            self._steps = now, done
        self._last = now, done

    def end_epoch(self, now: float) -> None:
        """Note the end of an epoch."""
        if self._since is not None:
            if self._warm:
                self._epochs_s.append(now - self._since)
            elif self._first_s is None:
                self._first_s = now - self._since
        self._since, self._warm, self._steps, self._last = now, True, None, (now, 0.0)

    def left_s(self, now: float, epochs_left: int) -> float | None:
        """Return the seconds left; None before anything is known. epochs_left: the one that runs included."""
        if self._last is None:
            return None
        at, done = self._last
        epoch_s = fmean(self._epochs_s) if self._epochs_s else self._first_s
        if epoch_s is None:
            epoch_s = self._by_steps(at, done)
        if epoch_s is None:
            return None
        return max(0.0, (epochs_left - done) * epoch_s - min(now - at, epoch_s * (1 - done)))

    def _by_steps(self, at: float, done: float) -> float | None:
        """Return the seconds of the first epoch by its steps after the first report; None before a second one."""
        if self._steps is None or done <= self._steps[1]:
            return None
        return (at - self._steps[0]) / (done - self._steps[1])
