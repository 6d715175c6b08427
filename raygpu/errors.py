"""The exceptions that raygpu raises when it can name the fault.

RaygpuError
 +-- BadInput         the user's configuration, flags, experiment or files: exit code 2, one line for each fault
      +-- UnknownMetric    the experiment does not report the configured metric
      +-- TrackingError    the tracking server refused or is out of reach
"""

from __future__ import annotations

from collections.abc import Sequence


class RaygpuError(Exception):
    """A fault that raygpu can explain in one line: shown without a traceback."""


class BadInput(RaygpuError):
    """One or more faults in a user's input: `faults` holds a line for each."""

    def __init__(self, faults: str | Sequence[str]) -> None:
        self.faults: tuple[str, ...] = (faults,) if isinstance(faults, str) else tuple(faults)
        self.shown = False
        """Whether the faults have been printed already."""
        super().__init__("\n".join(self.faults))


class UnknownMetric(BadInput):
    """The configured metric is not among those that the experiment reports."""


class TrackingError(BadInput):
    """The MLflow store that the configuration names cannot be used."""


def one_line(error: BaseException) -> str:
    """Return an exception as one line, `KeyError: 'lr'`, for messages about code that is not ours."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    return f"{kind}: {text[:300]}" if text else kind


def kind(line: str) -> str:
    """Return the type of error that the last line of a traceback names, `ValueError`."""
    return line.partition(":")[0]


def last_line(traceback: str) -> str:
    """Return the last line of a traceback, shortened."""
    lines = traceback.strip().splitlines()
    return lines[-1][:300] if lines else ""
