"""Whether a failure was one of memory: the training ran out of its share, and a larger one may carry it.

Judged by what frameworks raise and print, not by the word "memory": a user's own ValueError about a replay memory is a
fault of the code, and no larger share mends it.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator

NAMES = frozenset({"OutOfMemoryError", "MemoryError", "_ArrayMemoryError", "ResourceExhaustedError"})
"""torch's, CuPy's and Ray's OutOfMemoryError; Python's; NumPy's; TensorFlow's."""

# Exceptions that frameworks use for many things, memory among them.
GENERAL = re.compile(r"(RuntimeError|AcceleratorError|InternalError|BackendError|SystemError|UnknownError|OSError)$")
TEXTS = re.compile(
    r"CUDA out of memory\. Tried to allocate"
    r"|CUDA (driver )?error: out of memory|Triton Error \[CUDA\]: out of memory"
    r"|Cuda failure 2 'out of memory'"  # NCCL
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (can't allocate|not enough) memory"
    r"|OOM when allocating tensor|RESOURCE_EXHAUSTED: "  # TensorFlow, XLA
    r"|std::bad_alloc"
    r"|\[Errno 12\] Cannot allocate memory"
)
# The last line of a traceback, at the beginning of a line: a dotted name, alone or with a message.
EXCEPTION_LINE = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
# What C++ prints before it aborts, and a script that prints the message of what it caught and gives up.
BARE_LINE = re.compile(r"(  what\(\): |CUDA out of memory\. Tried to allocate|\[enforce fail at alloc_cpu)")
CHAINED = re.compile(r"(During handling of the above exception|The above exception was the direct cause)")


def is_out_of_memory(error: BaseException | str) -> bool:
    """Of an exception, or of a text that ends with a traceback or with what a script printed last.

    What was raised while a failure of memory was handled counts as well: it would not have been without that one.
    """
    if isinstance(error, str):
        return _text_says(error)
    return any(_exception_says(link) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _exception_says(error: BaseException) -> bool:
    if any(kind.__name__ in NAMES for kind in type(error).__mro__):
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    # A script's failure carries the script's last lines.
    return _text_says("".join(traceback.format_exception_only(error)))


def _text_says(text: str) -> bool:
    """The last failure in the text, and those before it that it came of."""
    failures: list[tuple[int, bool]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        verdict = _line_says(line, lines[number - 1] if number else "")
        if verdict is not None:
            failures.append((number, verdict))
    while failures:
        number, verdict = failures.pop()
        if verdict:
            return True
        if not failures or not any(CHAINED.match(line) for line in lines[failures[-1][0] : number]):
            return False
    return False


def _line_says(line: str, before: str) -> bool | None:
    """Whether a line is a failure of memory (True) or of something else (False); None if it is no failure."""
    if BARE_LINE.match(line):
        return TEXTS.search(line) is not None
    found = EXCEPTION_LINE.match(line)
    if found is None:
        return None
    name, message = found["name"].rpartition(".")[2], found["message"] or ""
    if name in NAMES:
        return True
    if GENERAL.search(name):
        return TEXTS.search(message) is not None
    # Anything else is a failure only where Python prints one: right below a frame.
    return False if before.startswith("  ") else None
