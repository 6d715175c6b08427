"""The exceptions that raygpu raises when it can name the fault, and what may be shown of other libraries' messages.

RaygpuError
 +-- BadInput         the user's configuration, flags, experiment or files: exit code 2, one line for each fault
      +-- UnknownMetric    the experiment does not report the configured metric
      +-- TrackingError    the tracking server refused or is out of reach
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from urllib.parse import unquote

HIDDEN = "***"
_PASSWORD = re.compile(r"(://[^/:@\s]*):(.*)@")
_TOKEN = re.compile(r"(https?://)([^/:@\s]+)@", re.IGNORECASE)
"""Web address with a user and no password: what stands there is a token."""
_WORDS = "password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|sig|signature|credential|auth|key"
_SECRET_OPTION = re.compile(
    rf"([?&](?!ssl)(?:[\w.-]*[_.-])?(?:{_WORDS})(?:[_.-][\w.-]*)?="
    r"|[?&][\w-]*(?:password|passwd|pwd|secret|token)[\w-]*=)([^&#\s]*)",
    re.IGNORECASE,
)
SCRIPT_ENDED = "the script ended"
"""Beginning of the text of a script's failure, which the last lines of its output follow."""
_FRAME = re.compile(r'\s+File ".*", line \d+')
_ERROR = re.compile(r"[A-Za-z_][\w.<>]*(\([\w.]+\))?(: |:?$)")
_GROUP_TREE = re.compile(r"^ *(\+-[-+]*( [\d.]+ -+)?$|[|+] ?)", re.MULTILINE)
"""Drawing of an exception group in a traceback."""
_STYLE = re.compile(r"\x1b\[[\d;]*m")
"""Colors and bold type of a terminal, as in errors of Keras and Ray."""


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
    kind = type(error).__name__
    try:
        text = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception whose own text fails
        return kind
    return f"{kind}: {text[:300]}" if text else kind


def kind(line: str) -> str:
    """Return the type of error that a line of `error_line` names, `ValueError`."""
    return line.partition(":")[0]


def error_line(traceback: str) -> str:
    """Return the error that a traceback ends with, `ValueError: text`, as one line, shortened.

    Its text may have several lines, of which the first ones say most. Of a text without a traceback, and of a script
    whose output ends with none, return the last line.
    """
    text = _STYLE.sub("", traceback)
    if "Exception Group Traceback" in text:
        text = _GROUP_TREE.sub("", text)
    lines = [line for line in text.splitlines() if line.strip()]
    begin = _after_frames(lines)
    if begin is None or SCRIPT_ENDED in lines[begin]:
        begin = len(lines) - 1
    return " ".join(" ".join(lines[max(0, begin) :]).split())[:300]


def _after_frames(lines: Sequence[str]) -> int | None:
    """Return the number of the line that names the last error after a stack's frames; None without any."""
    found, frame = None, None
    for number, line in enumerate(lines):
        depth = len(line) - len(line.lstrip())
        if _FRAME.match(line):
            frame = depth
        elif frame is not None and depth <= frame and not line.lstrip().startswith("[Previous line repeated"):
            frame = None  # lines of code are deeper than their frame
            if _ERROR.match(line.strip()):
                found = number
    return found


def redacted(uri: str) -> str:
    """Return the URI with `***` in place of passwords, even of one that contains / or @."""
    uri = _TOKEN.sub(rf"\1{HIDDEN}@", _PASSWORD.sub(rf"\1:{HIDDEN}@", uri))
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", uri)


def cleaned(text: str, uri: str) -> str:
    """Return a library's message about `uri` without the secrets that it may repeat."""
    text = text.replace(uri, redacted(uri))
    secrets = [match[2] for pattern in (_PASSWORD, _TOKEN, _SECRET_OPTION) for match in pattern.finditer(uri)]
    for secret in secrets:
        for form in (secret, unquote(secret)):
            if len(form) > 2:  # shorter ones occur in ordinary words, and hide little
                text = text.replace(form, HIDDEN)
    return text


def suggestion(word: str, known: Sequence[str]) -> str:
    """Return ` (did you mean 'x'?)` for the closest known word, or an empty string."""
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
