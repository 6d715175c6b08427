"""The copy of the user's experiment that one trial trains with, so that its worker's next trial finds it as new."""

from __future__ import annotations

import functools
import io
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import BuiltinMethodType, FunctionType, MethodType, MethodWrapperType, ModuleType
from typing import Any, TypeVar

from raygpu.training.deep_copy import deep_copy, held_by, owner_of

Code = TypeVar("Code")
LARGE = 2**26
"""Bytes of an object above which trials share it: it is data rather than state."""
MANY = 10_000
"""Number of elements of a container above which trials share it."""
DEPTH = 4
"""Number of levels of containers and objects in which shared ones are looked for."""

SHARED = (
    "self.{name} ({kind}) cannot be copied: the trials of one worker share it, and each may go on where the one"
    " before stopped; make it in model(hp), which each trial calls"
)


def own_copy(code: Code) -> Code:
    """Return a copy of an experiment, with what it keeps from step to step; itself if it is a function.

    Parameters and buffers are copied too, trained or not; a large one takes memory of its own once it is written to.
    So are functions that hold parts of the experiment, as closures do.
    Large arrays, tables and containers are shared, and so is an object that cannot be copied, as a lock or an open
    file; `shared_lines` names those that go on. Class attributes and global variables have no copy: `model(hp)` that
    returns their parameters for a second trial is refused, unless these are frozen and have not changed.
    """
    if isinstance(code, FunctionType):
        return code
    memo = dict(_replaced(code, DEPTH))
    with _same_seeds():
        try:
            return deep_copy(code, dict(memo))
        except Exception:  # noqa: BLE001 - the user's objects may raise anything: locks, files, tensors with a history
            _share_uncopyable(code, DEPTH, memo)
    with _same_seeds():
        return deep_copy(code, memo)


def shared_lines(code: Any) -> list[str]:
    """Return a line for each attribute of an experiment with an iterator, a generator or a file that is read, and that
    cannot be copied: the trials of one worker share it."""
    lines = []
    for name, value in (getattr(code, "__dict__", None) or {}).items():
        memo = dict(_replaced(value, DEPTH - 1))
        with _same_seeds():
            _share_uncopyable(value, DEPTH - 1, memo)
        if any(_goes_on(each) for each in memo.values()):
            lines.append(SHARED.format(name=name, kind=type(value).__name__))
    return lines


def _goes_on(value: Any) -> bool:
    """Return whether an object begins its next use where its last one ended."""
    if isinstance(value, io.IOBase):
        return not value.closed and value.readable()
    return isinstance(value, Iterator)


def holds_parameters(code: Any) -> bool:
    """Return whether an experiment keeps parameters of torch, which `model(hp)` may give to every model."""
    return any(True for _ in _parameters(code, DEPTH))


@contextmanager
def _same_seeds() -> Iterator[None]:
    """Let every copy draw the same numbers of Python's: Keras draws a seed for each layer that it makes."""
    state = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(state)


def _replaced(value: Any, depth: int) -> Iterator[tuple[int, Any]]:
    """Yield what a copy has in the place of the large objects in an object, each with the id of the one there."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            if _is_large(tensor) and (clone := _copied_at_a_write(tensor)) is not None:
                yield id(tensor), clone
    elif _is_large(value):
        clone = _copied_at_a_write(value) if torch is not None and isinstance(value, torch.Tensor) else None
        yield id(value), value if clone is None else clone
    elif depth:
        for each in parts_of(value):
            yield from _replaced(each, depth - 1)


def _copied_at_a_write(tensor: Any) -> Any:
    """Return a tensor that shares another one's memory until one of both is written to; None where torch cannot: the
    memory is a file's or NumPy's."""
    torch: Any = sys.modules["torch"]
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or not tensor.is_leaf:
        return None
    try:
        clone = tensor.detach()._lazy_clone()  # torch has no public way
    except (AttributeError, RuntimeError):
        return None
    return type(tensor)(clone, tensor.requires_grad) if type(tensor) is torch.nn.Parameter else clone


def _parameters(value: Any, depth: int) -> Iterator[Any]:
    """Yield the parameters of torch in an object."""
    torch: Any = sys.modules.get("torch")
    if torch is None or _is_large(value):
        return
    if isinstance(value, torch.nn.Module):
        yield from value.parameters()
    elif isinstance(value, torch.nn.Parameter):
        yield value
    elif depth:
        for each in parts_of(value):
            yield from _parameters(each, depth - 1)


def _share_uncopyable(value: Any, depth: int, memo: dict[int, Any]) -> None:
    """Add the objects that cannot be copied to `memo`, as copies of themselves: the smallest ones that are found."""
    try:
        deep_copy(value, dict(memo))
    except Exception:  # noqa: BLE001 - as above
        for each in parts_of(value) if depth else ():
            _share_uncopyable(each, depth - 1, memo)
        try:
            deep_copy(value, dict(memo))
        except Exception:  # noqa: BLE001 - as above
            memo[id(value)] = value


def parts_of(value: Any) -> list[Any]:
    """Return the elements of a container, the attributes of an object, and what a function holds."""
    if isinstance(value, str | bytes | type | ModuleType):
        return []
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, FunctionType):
        return held_by(value)
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, BuiltinMethodType | MethodWrapperType):
        return [] if owner_of(value) is None else [owner_of(value)]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    attributes = getattr(value, "__dict__", None)
    return list(attributes.values()) if isinstance(attributes, dict) else []


def _is_large(value: Any) -> bool:
    """Return whether an object is data. Tables of pandas and Arrow tell their bytes by `sys.getsizeof`."""
    if isinstance(value, Mapping | list | tuple | set | frozenset) and len(value) > MANY:
        return True
    nbytes = getattr(value, "nbytes", 0)  # of a class, it is a descriptor
    return max(nbytes if isinstance(nbytes, int) else 0, sys.getsizeof(value)) > LARGE
