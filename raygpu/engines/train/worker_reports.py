"""Reports of a production training's workers to the driver, and the actor that keeps them until it takes them.

The actor's process imports this module alone: no torch, no Ray Train.
"""

from __future__ import annotations

from dataclasses import dataclass

from raygpu.errors import error_line
from raygpu.records.training_progress import ControlRequest, Progress, Restored


@dataclass(frozen=True, slots=True)
class Joined:
    """Report that a rank has begun to train."""

    rank: int
    device: int
    """Index of the rank's device in `WorkerTask.devices`."""
    pid: int
    epoch: int
    """Last epoch that is trained already; 0 at the beginning."""
    notes: tuple[str, ...] = ()
    restored: Restored | None = None
    """History before the checkpoint that the training goes on from; rank 0 only."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Report that a checkpoint is saved."""

    epoch: int
    step: int
    score: float | None
    best: bool
    ended: bool = False
    """Whether a function has ended by itself before its last epoch."""
    took_s: float = 0.0
    """Seconds for which the training waited."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that the user's code has raised an error, which another try would not repair."""

    rank: int
    error: str
    """Traceback of the error."""
    out_of_memory: bool


@dataclass(frozen=True, slots=True)
class Notice:
    """A line for the user, of a worker or of what happens to them."""

    line: str
    once: bool = False
    """Whether it is shown once, though workers that start anew come to it again."""


WorkerReport = Joined | Progress | Saved | Failed | Notice
"""Report of a worker to the driver, or on it."""


class Mailbox:
    """Ray actor for messages between the workers and the driver; on the driver's node, without CPUs."""

    def __init__(self) -> None:
        self._reports: list[WorkerReport] = []
        self._request: ControlRequest = ""
        self._failed = False

    def tell(self, report: WorkerReport) -> None:
        """Take a worker's report."""
        self._failed = self._failed or isinstance(report, Failed)
        self._reports.append(report)

    def take(self) -> list[WorkerReport]:
        """Return the reports since the last call."""
        reports, self._reports = self._reports, []
        return reports

    def stop(self) -> None:
        """Ask the workers to end the training after a checkpoint."""
        self._request = "stop"

    def request(self) -> ControlRequest:
        """Return the driver's request to the workers: "stop", or empty for none."""
        return self._request

    def failed(self) -> bool:
        """Return whether the user's code has failed on any rank."""
        return self._failed


class TurnMailbox(Mailbox):
    """Mailbox of workers that train by turns: a turn has its own shares, and lasts until the next one begins."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: list[tuple[int, ...]] = []

    def begin_turn(self, shares: tuple[int, ...]) -> None:
        """End the turn that runs, and begin the next one. shares: samples of each device in a step."""
        self._turns.append(shares)

    def turn(self, number: int) -> tuple[int, ...] | ControlRequest:
        """Return the shares of a turn: empty if it has not begun yet, "stop" after the last one. number: from 0."""
        if number < len(self._turns):  # even if it is to end at once: another rank may have begun it
            return self._turns[number]
        return self._request if self._request == "stop" else ""

    def turn_wish(self, number: int) -> ControlRequest:
        """Return "stop" once a turn is over, else empty."""
        return "stop" if self._request == "stop" or number < len(self._turns) - 1 else ""


def last_words(failed: Failed, kind: str) -> str:
    """Return in one line why a training failed. kind: the kind of its source."""
    if failed.out_of_memory and kind == "function":
        return "out of memory: the function needs more than the device has; a smaller batch of its own may fit"
    if failed.out_of_memory:
        parts = "--global-batch B --accumulate N" if kind == "keras" else "--hyperparameters.micro_batch_size N"
        return f"out of memory on rank {failed.rank}; begin again with a smaller batch, or with parts of it by {parts}"
    return error_line(failed.error)
