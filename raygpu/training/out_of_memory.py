"""Recognize failures that ran out of memory: the same training may succeed with a larger share of the GPU.

Exceptions and messages of the frameworks decide, not the word "memory": a user's own ValueError about a replay memory
is a fault of the code, and no larger share repairs it.
"""

from __future__ import annotations

import errno
import re
import traceback
from collections.abc import Iterator

NAMES = frozenset({"OutOfMemoryError", "MemoryError", "_ArrayMemoryError", "ResourceExhaustedError"})
"""Exception classes for exhausted memory, by name: of torch, CuPy and Ray, Python, NumPy, and TensorFlow."""

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
    """Return whether a failure ran out of memory.

    error: an exception, or a text that ends with a traceback or with the last lines of a script. Exceptions raised
    while an out-of-memory error was handled count as well: that error caused them.
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
    """Judge the last failure in the text, and the earlier failures that it is chained to."""
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
    """Return True for a failure of memory, False for another failure, None for a line that is no failure."""
    if BARE_LINE.match(line):
        return TEXTS.search(line) is not None
    match = EXCEPTION_LINE.match(line)
    if match is None:
        return None
    name, message = match["name"].rpartition(".")[2], match["message"] or ""
    if name in NAMES:
        return True
    if GENERAL.search(name):
        return TEXTS.search(message) is not None
    # Anything else is a failure only where Python prints one: right below a frame.
    return False if before.startswith("  ") else None
