"""Names that an experiment's methods read and set, by their code: attributes, global variables, and parts of these."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

from raygpu.experiment import Experiment
from raygpu.training.users_files import in_users_file, is_users_module

LOADERS = ("data", "synthetic")
"""Methods that load the data."""
FILLING = frozenset(("append", "add", "update", "setdefault", "extend", "insert", "__setitem__"))
"""Methods that put something into a container."""
CHANGING = ("fit", "partial_fit", "adapt", "train", "update", "build", "load", "add", "set_")
"""Beginnings of the names of methods that change their object."""
Name = tuple[int | None, str, str | None]
"""The id of the dictionary of a global variable, or None for an attribute of the experiment; its name; and the name of
the attribute that is read of it, or None where it is used as a whole."""


@dataclass(slots=True)
class Use:
    """Names that functions read and set."""

    read: dict[Name, str] = field(default_factory=dict)
    """Name of a function that reads it, by what is read."""
    globals: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Dictionaries of global variables, by their ids."""
    filled_here: set[str] = field(default_factory=set)
    """Names of what may be a container into which the functions put something by themselves."""
    set_here: set[Name] = field(default_factory=set)
    """What the functions set by themselves: a worker has it when it needs it."""

    def value(self, experiment: Experiment, variables: int | None, name: str) -> Any:
        """Return the present value of an attribute, or of a global variable; None without one."""
        return getattr(experiment, name, None) if variables is None else self.globals[variables].get(name)


@dataclass(frozen=True, slots=True)
class _Access:
    """One access of a function's code."""

    of_self: bool
    name: str
    part: str | None
    is_set: bool


def use_of(experiment: Experiment, methods: Iterable[str]) -> Use:
    """Return what these methods read and set, and the user's functions that they call."""
    kind, use, seen = type(experiment), Use(), set[int]()
    waiting = [
        (function, True)
        for name in methods
        if not name.startswith("__") and isinstance(function := users_function(kind, name), FunctionType)
    ]
    while waiting:
        function, is_method = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        variables = id(function.__globals__)
        use.globals[variables] = function.__globals__
        for access in _accesses_of(function, is_method=is_method, use=use):
            if access.of_self and isinstance(member := users_function(kind, access.name), FunctionType):
                waiting += [(member, True)] if access.name not in LOADERS else []
            of_class = inspect.getattr_static(kind, access.name, None) if access.of_self else None
            if hasattr(type(of_class), "__get__"):  # a method or a property
                continue
            name = (None if access.of_self else variables, access.name, access.part)
            if access.is_set:
                use.set_here.add(name)
                continue
            use.read.setdefault(name, function.__name__)
            waiting += [(each, False) for each in _functions(use.value(experiment, *name[:2]), access.part)]
    return use


def _functions(value: Any, part: str | None) -> list[FunctionType]:
    """Return the user's functions that the use of a value, or of an attribute of it, may call."""
    if part is not None and isinstance(value, ModuleType) and is_users_module(value.__name__):
        value = vars(value).get(part)
    elif part is not None and not isinstance(value, type):
        value = inspect.getattr_static(type(value), part, None)
    if isinstance(value, type) and is_users_module(value.__module__):
        of_bases = [base for base in value.__mro__ if is_users_module(base.__module__)]
        return [each for base in of_bases for each in vars(base).values() if isinstance(each, FunctionType)]
    return [value] if isinstance(value, FunctionType) and in_users_file(value.__code__.co_filename) else []


def users_function(kind: type, name: str) -> Any:
    """Return a class' attribute that is the user's own, a property's function in its place; None for raygpu's."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None or owner.__module__.startswith("raygpu."):
        return None
    value = vars(owner)[name]
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def own_changes(kind: type, methods: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the attributes that these methods of a class set by themselves, and those that may be containers into
    which they put something; with the methods that they call."""
    set_here, filled, seen, waiting = set[str](), set[str](), set[str](), [*methods]
    while waiting:
        name = waiting.pop()
        function = users_function(kind, name)
        if name in seen or not isinstance(function, FunctionType):
            continue
        seen.add(name)
        use = Use()
        for access in _accesses_of(function, is_method=True, use=use):
            if access.of_self:
                waiting.append(access.name)
                if access.is_set and access.part is None:
                    set_here.add(access.name)
        filled |= use.filled_here
    return set_here, filled


def _accesses_of(function: FunctionType, *, is_method: bool, use: Use) -> Iterator[_Access]:
    """Yield the accesses of a function and of the functions in it, and note what it may fill."""
    own = function.__code__.co_varnames[0] if is_method and function.__code__.co_argcount else None
    for code in _codes(function.__code__, own):
        fills = _fills(code)
        for access in _accesses(code, own):
            if fills and not access.is_set:
                use.filled_here.add(access.name)
            yield access


def _codes(code: CodeType, own: str | None) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it, but for those with an argument named `own` too."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and own not in constant.co_varnames[: constant.co_argcount]:
            yield from _codes(constant, own)


def _accesses(code: CodeType, own: str | None) -> Iterator[_Access]:
    """Yield the attributes that are read and set of the variable `own`, and the global variables. What `+=` changes
    counts as set."""
    names, of_self, is_changed = list[str](), False, False
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name == "EXTENDED_ARG":
            continue
        if name == "COPY" and of_self and not names:
            is_changed = True
            continue
        if names or of_self:
            goes_on = name in ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR") and len(names) < 2
            if goes_on:
                names.append(argument)
            if (not goes_on or name == "STORE_ATTR") and names:
                yield _Access(
                    of_self, names[0], names[1] if names[1:] else None, is_changed or (name == "STORE_ATTR" and goes_on)
                )
            if goes_on and name != "STORE_ATTR":
                continue
            names, of_self, is_changed = [], False, False
        if name == "LOAD_GLOBAL":
            names = [argument]
        elif name == "STORE_GLOBAL":
            yield _Access(False, argument, None, True)
        elif name.startswith(("LOAD_FAST", "LOAD_DEREF")):
            of_self = own is not None and own == (argument[-1] if isinstance(argument, tuple) else argument)


def _fills(code: CodeType) -> bool:
    """Return whether a function puts something into a container, which may be one that it reads."""
    return bool(FILLING & {*code.co_names}) or any(each.opname == "STORE_SUBSCR" for each in dis.get_instructions(code))
