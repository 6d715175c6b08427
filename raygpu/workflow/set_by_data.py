"""Detect state that `data()` stores in attributes or globals: workers do not run `data()` and would miss it."""

from __future__ import annotations

import copy
import dis
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from raygpu.experiment import Experiment

LOADERS = ("data", "synthetic")
"""Methods that load the data."""
CONTAINERS = (list, dict, set)
COMPARABLE = (*CONTAINERS, tuple, frozenset, bool, int, float, complex, str, bytes, np.generic, np.dtype, np.ndarray)
MOST_ELEMENTS = 1000
"""Number of elements of a container above which its length alone is compared."""
FILLING = frozenset(("append", "add", "update", "setdefault", "extend", "insert", "__setitem__"))
"""Methods that put something into a container."""


@dataclass(slots=True)
class _Use:
    """Names that functions read and set."""

    attributes: dict[str, str] = field(default_factory=dict)
    """Name of the method that reads an attribute of the experiment, by the attribute's name."""
    variables: dict[tuple[int, str], tuple[dict[str, Any], str]] = field(default_factory=dict)
    """Global variables by their module's dictionary and their name, with the name of a function that reads them."""
    filled_here: set[str] = field(default_factory=set)
    """Names of what may be a container into which the functions put something by themselves."""
    set_here: set[str] = field(default_factory=set)
    """Names that the functions set by themselves: a worker has them when it needs them."""


class SetByData:
    """Attributes and global variables that an experiment's methods read, as they are before `data()` is called."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._use = _use_of(type(experiment))
        self._before = {words: _Earlier(value) for words, _, value in self._values()}

    def _values(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what methods read: its name in words, its name, and its present value."""
        for name, reader in self._use.attributes.items():
            if name not in self._use.set_here:
                yield f"self.{name}, which {reader}() reads", name, getattr(self._experiment, name, None)
        for (_, name), (variables, reader) in self._use.variables.items():
            if name not in self._use.set_here:
                yield f"the global {name}, which {reader}() reads", name, variables.get(name)

    def changed(self) -> str | None:
        """Return the first of them that has another value by now; None if none has."""
        for words, name, value in self._values():
            earlier = self._before[words]
            is_own_memo = value is earlier.value and name in self._use.filled_here
            if not is_own_memo and not earlier.is_still(value):
                return words
        return None


class _Earlier:
    """A value as it was: the object itself, and a copy of a container, which may change in place."""

    def __init__(self, value: Any) -> None:
        self.value = value
        is_small = isinstance(value, CONTAINERS) and len(value) <= MOST_ELEMENTS
        self.copy = copy.copy(value) if is_small else value
        self.length = len(value) if isinstance(value, CONTAINERS) else None

    def is_still(self, value: Any) -> bool:
        """Return whether a value is the earlier one, or equals it."""
        if value is self.value and self.copy is value:
            return self.length is None or len(value) == self.length
        if type(value) is not type(self.value) or not isinstance(value, COMPARABLE):
            return False
        try:
            return bool(np.array_equal(value, self.copy) if isinstance(value, np.ndarray) else value == self.copy)
        except Exception:  # noqa: BLE001 - elements that do not compare, as arrays in a list
            return value is self.value and (self.length is None or len(value) == self.length)


def _use_of(kind: type) -> _Use:
    """Return what the methods that raygpu calls read and set, and the user's functions that these call."""
    use, seen = _Use(), set[int]()
    contract = {name for base in kind.__mro__ if base.__module__.startswith("raygpu.") for name in vars(base)}
    waiting = [
        (function, True)
        for name in contract - set(LOADERS)
        if isinstance(function := _user_s(kind, name), FunctionType) and not name.startswith("__")
    ]
    while waiting:
        function, is_method = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        self_name = function.__code__.co_varnames[0] if is_method and function.__code__.co_argcount else None
        for code in _codes(function.__code__, self_name):
            for name in _read_attributes(code, self_name, use):
                member = _user_s(kind, name)
                if isinstance(member, FunctionType) and name not in LOADERS:
                    waiting.append((member, True))
                if not hasattr(type(inspect.getattr_static(kind, name, None)), "__get__"):  # no method nor property
                    use.attributes.setdefault(name, function.__name__)
            for name in _read_variables(code, use):
                value = function.__globals__.get(name)
                if isinstance(value, FunctionType) and value.__globals__ is function.__globals__:
                    waiting.append((value, False))
                elif isinstance(value, type) and value.__module__ == function.__module__:
                    waiting += [(each, False) for each in vars(value).values() if isinstance(each, FunctionType)]
                else:
                    use.variables.setdefault(
                        (id(function.__globals__), name), (function.__globals__, function.__name__)
                    )
    return use


def _user_s(kind: type, name: str) -> Any:
    """Return a class' attribute that is the user's own, a property's function in its place; None for raygpu's."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None or owner.__module__.startswith("raygpu."):
        return None
    value = vars(owner)[name]
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _codes(code: CodeType, own: str | None) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it, but for those with an argument named `own` too."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and own not in constant.co_varnames[: constant.co_argcount]:
            yield from _codes(constant, own)


def _read_attributes(code: CodeType, own: str | None, use: _Use) -> list[str]:
    """Return the attributes that are read of the variable `own`, and note those that are set."""
    attributes, before = list[str](), None
    fills = _fills(code)
    for instruction in dis.get_instructions(code):
        if own is not None and before == own:
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.append(instruction.argval)
                if fills:
                    use.filled_here.add(instruction.argval)
            elif instruction.opname == "STORE_ATTR":
                use.set_here.add(instruction.argval)
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        before = loaded[-1] if isinstance(loaded, tuple) else loaded
    return attributes


def _read_variables(code: CodeType, use: _Use) -> list[str]:
    """Return the global variables that are read, and note those that are set."""
    variables, fills = list[str](), _fills(code)
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_GLOBAL":
            use.set_here.add(instruction.argval)
        elif instruction.opname == "LOAD_GLOBAL":
            variables.append(instruction.argval)
            if fills:
                use.filled_here.add(instruction.argval)
    return variables


def _fills(code: CodeType) -> bool:
    """Return whether a function puts something into a container, which may be one that it reads."""
    return bool(FILLING & {*code.co_names}) or any(each.opname == "STORE_SUBSCR" for each in dis.get_instructions(code))
