"""Attributes and global variables that `data()` sets and other methods of an experiment read: workers do not have them.

`data()` is called once for a command, and each worker makes an experiment of its own.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

from raygpu.experiment import Experiment

LOADERS = ("data", "synthetic")
"""Methods that load the data."""


@dataclass(slots=True)
class _Use:
    """Names that functions read and set."""

    attributes: dict[str, str] = field(default_factory=dict)
    """Name of the method that reads an attribute of the experiment, by the attribute's name."""
    variables: dict[tuple[int, str], tuple[dict[str, Any], str]] = field(default_factory=dict)
    """Global variables by their module's dictionary and their name, with the name of a function that reads them."""
    set_here: set[str] = field(default_factory=set)
    """Names that the functions set by themselves: a worker has them when it needs them."""


class SetByData:
    """Attributes and global variables that an experiment's methods read, as they are before `data()` is called."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._use = _use_of(type(experiment))
        self._before = dict(self._values())

    def _values(self) -> Iterator[tuple[str, tuple[Any, int | None]]]:
        """Yield the present value, and its length if it has one, of what methods read, by its name in words."""
        for name, reader in self._use.attributes.items():
            if name not in self._use.set_here:
                yield f"self.{name}, which {reader}() reads", _sized(getattr(self._experiment, name, None))
        for (_, name), (variables, reader) in self._use.variables.items():
            if name not in self._use.set_here:
                yield f"the global {name}, which {reader}() reads", _sized(variables.get(name))

    def changed(self) -> str | None:
        """Return the first of them that is another object by now, or has another length; None if none is."""
        for name, (value, length) in self._values():
            before, its_length = self._before[name]
            if value is not before and not _same_number(value, before):
                return name
            if length != its_length:
                return name
        return None


def _sized(value: Any) -> tuple[Any, int | None]:
    is_container = isinstance(value, Sized) and type(value).__module__ == "builtins"
    return value, len(value) if is_container else None


def _same_number(one: Any, other: Any) -> bool:
    return type(one) is type(other) and isinstance(one, bool | int | float | str | bytes) and one == other


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
        own = function.__code__.co_varnames[0] if is_method and function.__code__.co_argcount else None
        for code in _codes(function.__code__):
            for name in _read_attributes(code, own, use):
                found = _user_s(kind, name)
                if isinstance(found, FunctionType) and name not in LOADERS:
                    waiting.append((found, True))
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


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _read_attributes(code: CodeType, own: str | None, use: _Use) -> list[str]:
    """Return the attributes that are read of the variable `own`, and note those that are set."""
    found, before = list[str](), None
    for instruction in dis.get_instructions(code):
        if own is not None and before == own:
            if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                found.append(instruction.argval)
            elif instruction.opname == "STORE_ATTR":
                use.set_here.add(instruction.argval)
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        before = loaded[-1] if isinstance(loaded, tuple) else loaded
    return found


def _read_variables(code: CodeType, use: _Use) -> list[str]:
    """Return the global variables that are read, and note those that are set."""
    found = list[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname == "STORE_GLOBAL":
            use.set_here.add(instruction.argval)
        elif instruction.opname == "LOAD_GLOBAL":
            found.append(instruction.argval)
    return found
