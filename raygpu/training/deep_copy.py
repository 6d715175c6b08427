"""`copy.deepcopy` that follows the functions of a user's objects: Python's own gives back each function as it is, and
what a closure or a default value holds is then that of the original.

    self.penalty = lambda outputs: self.alpha * outputs.square().mean()     # of a copy: its own alpha
"""

from __future__ import annotations

import copy
import functools
import random
import sys
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
FOLLOWED = "functions are followed"
"""Key of a memo: every other copy that is made in this process is Python's own."""
LIBRARIES = frozenset({"functools", "keras", "numpy", "tensorflow", "torch"})
"""Packages whose functions keep no state of an experiment's."""
GENERATORS: tuple[Any, ...] = tuple(getattr(draw, "__self__", None) for draw in (random.random, np.random.rand))
"""Global generators of Python and NumPy, to which their functions are bound: a copy would draw numbers of its own."""
METADATA = ("__qualname__", "__doc__", "__module__", "__annotations__", "__type_params__")


def deep_copy(value: T, memo: dict[Any, Any] | None = None) -> T:
    """Return a deep copy of a value. memo: as of `copy.deepcopy`, from the id of each object to its copy."""
    memo = {} if memo is None else memo
    memo[FOLLOWED] = True
    memo.update((id(each), each) for each in GENERATORS)
    return copy.deepcopy(value, memo)


def held_by(function: FunctionType) -> list[Any]:
    """Return what a function of the user's holds: in its closure, its default values and its attributes."""
    if str(function.__module__).partition(".")[0] in LIBRARIES:
        return []
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *vars(function).values()]
    return [*held, *(cell.cell_contents for cell in _bound(function))]


def _bound(function: FunctionType) -> Iterator[CellType]:
    """Yield the cells of a function's closure that have a value already."""
    for cell in function.__closure__ or ():
        try:
            cell.cell_contents  # noqa: B018 - raises where the name was not bound yet
        except ValueError:
            continue
        yield cell


def _copied_function(function: FunctionType, memo: dict[Any, Any]) -> FunctionType:
    """Return a function with copies of all that it holds; itself if that is nothing, or if a module has it by name."""
    if FOLLOWED not in memo or not held_by(function) or _is_named(function):
        return function
    compiled = getattr(function, "_torchdynamo_orig_callable", None)
    if compiled is not None and copy.deepcopy(compiled, memo) is compiled:
        return function  # by torch.compile: a copy would be compiled anew
    cells = [
        memo.setdefault(id(cell), CellType()) for cell in function.__closure__ or ()
    ]  # two functions may share one
    made = FunctionType(function.__code__, function.__globals__, function.__name__, None, tuple(cells) or None)
    memo[id(function)] = made  # it may hold itself
    for cell in _bound(function):
        memo[id(cell)].cell_contents = _copied_part(cell.cell_contents, memo)
    made.__defaults__ = tuple(_copied_part(each, memo) for each in function.__defaults__ or ()) or None
    keywords = {name: _copied_part(each, memo) for name, each in (function.__kwdefaults__ or {}).items()}
    made.__kwdefaults__ = keywords or None
    vars(made).update({name: _copied_part(each, memo) for name, each in vars(function).items()})
    for name in METADATA:
        if hasattr(function, name):
            setattr(made, name, getattr(function, name))
    return made


def _is_named(function: FunctionType) -> bool:
    """Return whether a function's module has it by its name: it is pickled, and compared, as that."""
    named: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        named = getattr(named, name, None)
    return named is function


def _copied_part(value: Any, memo: dict[Any, Any]) -> Any:
    """Return a copy of what a function holds; a module, which has no copies, as it is."""
    return value if isinstance(value, ModuleType) else copy.deepcopy(value, memo)


def _copied_cache(cached: Any, memo: dict[Any, Any]) -> Any:
    """Return a function of `functools.lru_cache` with a cache and a copy of its own; itself if it holds nothing."""
    function = _copied_part(cached.__wrapped__, memo) if FOLLOWED in memo else cached.__wrapped__
    return cached if function is cached.__wrapped__ else functools.lru_cache(**cached.cache_parameters())(function)


def _copied_reference(reference: weakref.ref[Any], memo: dict[Any, Any]) -> weakref.ref[Any]:
    """Return a weak reference to the copy of an object of which there is one already, as of the owner's."""
    return weakref.ref(memo[id(reference())]) if FOLLOWED in memo and id(reference()) in memo else reference


copy._deepcopy_dispatch |= {  # type: ignore[attr-defined]  # there is no public way
    FunctionType: _copied_function,
    functools._lru_cache_wrapper: _copied_cache,
    weakref.ref: _copied_reference,
}
