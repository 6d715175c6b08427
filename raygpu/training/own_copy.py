"""The copy of the user's experiment that one trial trains with, so that its worker's next trial finds it as new."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

Code = TypeVar("Code")
LARGE = 2**26
"""Bytes of an object above which trials share it: it is data rather than state."""
MANY = 10_000
"""Number of elements of a container above which trials share it."""
DEPTH = 4
"""Number of levels of containers and objects in which shared ones are looked for."""


def own_copy(code: Code) -> Code:
    """Return a copy of an experiment, with what it keeps from step to step; itself if it is a function, or cannot be
    copied.

    Parameters that train are shared: `model(hp)` that returns them for a second trial is refused. Large arrays, tables
    and containers are shared too. Class attributes and global variables have no copy.
    """
    try:
        return copy.deepcopy(code, {id(value): value for value in _shared(code, DEPTH)})
    except Exception:  # noqa: BLE001 - the user's objects may raise anything: locks, open files, tensors with a history
        return code


def _shared(value: Any, depth: int) -> Iterator[Any]:
    """Yield the parameters, and the large objects, in an object."""
    torch: Any = sys.modules.get("torch")
    if _is_large(value):
        yield value
    elif torch is not None and isinstance(value, torch.nn.Module):
        yield from (each for each in value.parameters() if each.requires_grad or each.nbytes > LARGE)
        yield from (each for each in value.buffers() if each.nbytes > LARGE)
    elif depth == 0 or isinstance(value, str | bytes | type):
        return
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _shared(each, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _shared(each, depth - 1)
    elif torch is not None and isinstance(value, torch.nn.Parameter) and value.requires_grad:
        yield value
    elif isinstance(getattr(value, "__dict__", None), dict):
        yield from _shared(vars(value), depth - 1)


def _is_large(value: Any) -> bool:
    """Return whether an object is data. Tables of pandas and Arrow tell their bytes by `sys.getsizeof`."""
    if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) > MANY:
        return True
    return max(getattr(value, "nbytes", 0), sys.getsizeof(value)) > LARGE
