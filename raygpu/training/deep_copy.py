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
from collections import deque
from collections.abc import Iterator
from types import BuiltinMethodType, CellType, FunctionType, MethodWrapperType, ModuleType
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
FOLLOWED = "functions are followed"
"""Key of a memo: every other copy that is made in this process is Python's own."""
WEAKLY = "objects of weak references that are not copied yet"
"""Key of a memo with the ids of these objects."""
REACHED = "objects of weak references that are copied later"
"""Key of a memo with the ids of these objects."""
LIBRARIES = frozenset({"functools", "keras", "numpy", "tensorflow", "torch"})
"""Packages whose functions keep no state of an experiment's."""
GENERATORS: tuple[Any, ...] = tuple(getattr(draw, "__self__", None) for draw in (random.random, np.random.rand))
"""Global generators of Python and NumPy, to which their functions are bound: a copy would draw numbers of its own."""
OWNERS = list | dict | set | deque | bytearray | random.Random | np.random.Generator | np.random.RandomState
"""Types whose methods keep state, and that can be copied."""
METADATA = ("__qualname__", "__doc__", "__module__", "__annotations__", "__type_params__")


def deep_copy(value: T, memo: dict[Any, Any] | None = None) -> T:
    """Return a deep copy of a value. memo: as of `copy.deepcopy`, from the id of each object to its copy."""
    given = (memo or {}) | {FOLLOWED: True, WEAKLY: set(), REACHED: frozenset()}
    given |= {id(each): each for each in GENERATORS}
    copies = dict(given)
    copied = copy.deepcopy(value, copies)
    reached = copies[WEAKLY] & copies.keys()
    if not reached:
        return copied
    del copied, copies
    return copy.deepcopy(value, given | {REACHED: reached})  # a weak reference came before what owns its object


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
    """Return a weak reference to the copy of an object that is copied too, as of the owner's; else itself."""
    target = reference()
    return weakref.ref(memo[id(target)]) if _is_copied(target, memo) else reference


def _copied_weak_method(reference: weakref.WeakMethod[Any], memo: dict[Any, Any]) -> weakref.WeakMethod[Any]:
    """Return a weak reference to the method of an object's copy, if there is one; else itself."""
    method = reference()
    if method is None or not _is_copied(method.__self__, memo):
        return reference
    return weakref.WeakMethod(method.__func__.__get__(memo[id(method.__self__)]))


def _copied_proxy(proxy: Any, memo: dict[Any, Any]) -> Any:
    """Return a weak proxy of the copy of an object that is copied too; else itself."""
    try:
        target = proxy.__repr__.__self__
    except ReferenceError:  # it is gone
        return proxy
    return weakref.proxy(memo[id(target)]) if _is_copied(target, memo) else proxy


def _is_copied(target: Any, memo: dict[Any, Any]) -> bool:
    """Return whether an object has a copy, other than by weak references; make that of an object known for one."""
    if FOLLOWED not in memo or target is None:
        return False
    if id(target) in memo[REACHED]:
        copy.deepcopy(target, memo)
    if id(target) not in memo:
        memo[WEAKLY].add(id(target))
    return id(target) in memo


def owner_of(method: Any) -> Any:
    """Return the container or generator to which a method of C code is bound; None of another object's and of a
    function, which stay as they are."""
    return method.__self__ if isinstance(method.__self__, OWNERS) else None


def _copied_method(method: Any, memo: dict[Any, Any]) -> Any:
    """Return a method of C code bound to a copy of its object, as `list.append`."""
    owner = owner_of(method) if FOLLOWED in memo else None
    if owner is None:
        return method
    kinds = (vars(kind).get(method.__name__) for kind in type(owner).__mro__)  # a subclass may override the method
    bound = (kind for kind in kinds if kind is not None and kind.__get__(owner) == method)
    return next((kind.__get__(copy.deepcopy(owner, memo)) for kind in bound), method)


copy._deepcopy_dispatch |= {  # type: ignore[attr-defined]  # there is no public way
    FunctionType: _copied_function,
    functools._lru_cache_wrapper: _copied_cache,
    weakref.ref: _copied_reference,
    weakref.WeakMethod: _copied_weak_method,
    weakref.ProxyType: _copied_proxy,
    weakref.CallableProxyType: _copied_proxy,
    BuiltinMethodType: _copied_method,
    MethodWrapperType: _copied_method,
}
