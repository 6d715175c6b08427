"""Metrics that a script prints on its standard output and its standard error.

They are two pipes, so that nothing tells in which order lines of the one and lines of the other were written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from raygpu.training.callable.printed_metrics import PrintedMetrics

OUTPUT, ERROR = "standard output", "standard error"
MOST_APART = 10_000
"""Largest number of values of a metric that wait for another metric's."""


class PrintedStreams:
    """The metrics of `[script] metrics`, by epoch, from a script's two streams.

    A stream that prints all of several metrics is used alone, from its first complete set on. Where each stream prints
    some of them, the n-th value of each metric belongs to the n-th epoch. That no stream prints all is known once each
    metric has been found twice, or the script has ended.
    """

    def __init__(self, expressions: Mapping[str, str]) -> None:
        self.streams = {stream: PrintedMetrics(expressions) for stream in (OUTPUT, ERROR)}
        self.names = tuple(expressions)
        self._alone: str | None = None
        """Stream that prints all metrics; None if it is not known, or if there is none."""
        self._is_joined = False
        """Whether each stream prints some of the metrics."""
        self._num_joined = 0
        self._waiting: dict[tuple[str, str], deque[float]] = {}
        """Values of metrics that are not in a set yet, by stream and name; without a stream that prints all."""

    @property
    def not_found(self) -> list[str]:
        """Names of metrics that have not been found since the last complete set."""
        return [name for name in self.names if all(name not in printed.seen for printed in self.streams.values())]

    def take(self, stream: str, line: str) -> list[dict[str, float]]:
        """Search a line of a stream; return the sets that it completes. Raises ValueError for text that is no number,
        and if the values cannot be told by epoch."""
        if self._alone not in (None, stream):
            return []
        values = self.streams[stream].find(line)
        if complete := self.streams[stream].add(values):
            if self._is_joined:
                raise self._apart()
            if len(self.names) > 1:
                self._alone = stream
            self._waiting = {}
            return [complete]
        if self._alone is None:
            for name, value in values.items():
                waiting = self._waiting.setdefault((stream, name), deque())
                if len(waiting) < MOST_APART:
                    waiting.append(value)
        return self._joined() if self._is_joined else []

    def settle(self, *, has_ended: bool = False) -> list[dict[str, float]]:
        """Return the sets that are complete now that both streams have been read to what is there. Raises ValueError if
        the values cannot be told by epoch. has_ended: nothing more comes."""
        lengths = {name: len(waiting) for (_, name), waiting in self._waiting.items()}
        if not self._is_joined:
            found = {name for name, length in lengths.items() if length > 1 or has_ended}
            if self._alone is not None or len(self.names) < 2 or found != {*self.names}:
                return []
            self._is_joined = True
        if max(lengths.values()) - min(lengths.values()) > (0 if has_ended else 1):
            raise self._apart()
        return self._joined()

    def _joined(self) -> list[dict[str, float]]:
        """Take out the complete sets of values that wait. Raises ValueError if both streams have one of the metrics."""
        if len(self._waiting) > len(self.names):
            raise self._apart()
        count = min(len(waiting) for waiting in self._waiting.values())
        self._num_joined += count
        return [{name: waiting.popleft() for (_, name), waiting in self._waiting.items()} for _ in range(count)]

    def _apart(self) -> ValueError:
        numbers = ", ".join(
            f"{name} {self._num_joined + len(waiting):,} times on {stream}"
            for (stream, name), waiting in self._waiting.items()
        )
        return ValueError(
            f"[script] metrics: found {numbers}: which values are of one epoch is not known; print all metrics on one"
            " stream, or each of them once in an epoch and at once (flush), or call raygpu.report"
        )

    def clear(self) -> None:
        """Forget the values of incomplete sets, and of complete ones that have not been returned."""
        for printed in self.streams.values():
            printed.clear()
        if len(self._waiting) == len(self.names) > 1:
            self._joined()  # what is left belongs to a set whose other values come later
