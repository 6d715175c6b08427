"""Names that an experiment's methods read and set, by their code: attributes, global variables, and parts of these."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, MethodType
from typing import Any

from raygpu.experiment import Experiment
from raygpu.training.users_files import in_users_file, is_users_module
from raygpu.workflow.dotted_names import End, Place, follow, identity

LOADERS = ("data", "synthetic")
"""Methods that load the data."""
BY_RAYGPU = ("__getitem__", "__getitems__", "__len__", "__iter__", "set_epoch")
"""Methods of a data set that raygpu calls itself, in workers too."""
FILLING = frozenset(("append", "add", "update", "setdefault", "extend", "insert", "__setitem__"))
"""Methods that put something into a container."""
CHANGING = ("fit", "partial_fit", "adapt", "train", "update", "build", "load", "add", "set_")
"""Beginnings of the names of methods that change their object."""
Name = tuple[int | None, tuple[str, ...]]
"""A dotted name: the id of the dictionary of a global variable, or None for an attribute of the experiment; and the
names, as ("stats", "std") for `self.stats.std`."""


@dataclass(slots=True)
class Use:
    """Names that functions read and set."""

    read: dict[Name, str] = field(default_factory=dict)
    """Name of a function that reads it, by what is read."""
    globals: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Dictionaries of global variables, by their ids."""
    filled_here: set[Place] = field(default_factory=set)
    """Places of what may be a container into which the functions put something by themselves."""
    set_here: set[Place] = field(default_factory=set)
    """Places that the functions set by themselves: a worker has it when it needs it."""
    owners: list[Any] = field(default_factory=list)
    """Objects whose ids are in these places: kept, so that no other object gets the id."""

    def end(self, experiment: Experiment, name: Name) -> End:
        """Follow a name from its start, as it is at present."""
        variables, path = name
        return follow(experiment if variables is None else self.globals[variables], path)


@dataclass(frozen=True, slots=True)
class _Owner:
    """The object whose method a function is, and the name by which it was reached."""

    value: Any
    name: Name


@dataclass(frozen=True, slots=True)
class _Access:
    """One access of a function's code: the names after a global variable's dictionary, or after the function's own
    object, none where that is passed on as a whole."""

    of_self: bool
    path: tuple[str, ...]
    is_set: bool


def use_of(experiment: Experiment, methods: Iterable[str]) -> Use:
    """Return what these methods read and set, and the user's functions that they call, with the methods of objects."""
    here, use, seen = _Owner(experiment, (None, ())), Use(), set[tuple[int, int]]()
    functions = [users_function(type(experiment), name) for name in methods if not name.startswith("__")]
    waiting: list[tuple[FunctionType, _Owner | None]]
    waiting = [(each, here) for each in functions if isinstance(each, FunctionType)]
    while waiting:
        function, owner = waiting.pop()
        if (key := (id(function), id(owner and owner.value))) in seen:
            continue
        seen.add(key)
        variables = id(function.__globals__)
        use.globals[variables] = function.__globals__
        own, fills = _own(function, owner is not None), _fills_any(function)
        for access in (each for code in _codes(function.__code__, own) for each in _accesses(code, own)):
            start = owner if access.of_self else _Owner(function.__globals__, (variables, ()))
            assert start is not None
            if start is here and access.path[:1] and access.path[0] in LOADERS:
                continue
            waiting += _noted(use, access, start, here, (function.__name__, fills))
    return use


def _noted(
    use: Use, access: _Access, start: _Owner, here: _Owner, function: tuple[str, bool]
) -> list[tuple[Any, _Owner | None]]:
    """Note an access; return the functions that it may call. function: its name, and whether it fills containers."""
    (variables, before), path = start.name, access.path
    end = follow(start.value, path[:-1] if access.is_set else path)
    use.owners += end.owners
    if access.is_set:
        if end.is_exact:
            use.owners.append(end.value)
            use.set_here.add((identity(end.value), path[-1]))
        return []
    if function[1] and end.places:
        use.filled_here.add(end.places[-1])
    depth = len(end.places)
    owner = _Owner(end.value, (variables, (*before, *path[:depth])))
    if not end.is_exact and isinstance(member := users_function(type(end.value), path[depth]), FunctionType):
        if owner.value is here.value:
            return [(member, here)]
        if in_users_file(member.__code__.co_filename):
            return [(member, owner)]
    if owner.value is not here.value and (variables is not None or owner.name[1]):
        use.read.setdefault((variables, (*before, *path)), function[0])
    return _called(end.value, here)


def _called(value: Any, here: _Owner) -> list[tuple[Any, _Owner | None]]:
    """Return the user's functions that a call of a value may call, with the objects whose methods they are."""
    if isinstance(value, MethodType):
        return [(value.__func__, here)] if value.__self__ is here.value else []
    if isinstance(value, type) and is_users_module(value.__module__):
        of_bases = [base for base in value.__mro__ if is_users_module(base.__module__)]
        return [(each, None) for base in of_bases for each in vars(base).values() if isinstance(each, FunctionType)]
    is_users = isinstance(value, FunctionType) and in_users_file(value.__code__.co_filename)
    return [(value, None)] if is_users else []


def users_function(kind: type, name: str) -> Any:
    """Return a class' attribute that is the user's own, a property's function in its place; None for raygpu's."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None or owner.__module__.startswith("raygpu."):
        return None
    value = vars(owner)[name]
    if isinstance(value, functools.cached_property):
        return value.func
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def own_changes(kind: type, methods: Iterable[str]) -> tuple[set[str], set[str]]:
    """Return the attributes that these methods of a class set by themselves, and those that may be containers into
    which they put something; with the methods that they call."""
    set_here, filled, seen, waiting = set[str](), set[str](), set[str](), [*methods]
    while waiting:
        name = waiting.pop()
        function = users_function(kind, name)
        if name in seen or not isinstance(function, FunctionType) or not in_users_file(function.__code__.co_filename):
            continue
        seen.add(name)
        own, fills = _own(function, is_method=True), _fills_any(function)
        for access in (each for code in _codes(function.__code__, own) for each in _accesses(code, own)):
            if access.of_self and access.path:
                waiting.append(access.path[0])
                if access.is_set and len(access.path) == 1:
                    set_here.add(access.path[0])
                elif fills:
                    filled.add(access.path[0])
    return set_here, filled


def _own(function: FunctionType, is_method: bool) -> str | None:
    """Return the name of a method's own object; None of other functions."""
    return function.__code__.co_varnames[0] if is_method and function.__code__.co_argcount else None


def _codes(code: CodeType, own: str | None) -> Iterator[CodeType]:
    """Yield a function's code and that of the functions in it, but for those with an argument named `own` too."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and own not in constant.co_varnames[: constant.co_argcount]:
            yield from _codes(constant, own)


def _accesses(code: CodeType, own: str | None) -> Iterator[_Access]:
    """Yield the attributes that are read and set of the variable `own`, and the global variables. What `+=` changes
    counts as set."""
    names, of_self, is_copied = list[str](), False, False
    for instruction in dis.get_instructions(code):
        name, argument = instruction.opname, instruction.argval
        if name == "EXTENDED_ARG":
            continue
        if names or of_self:
            if name == "COPY" and not is_copied:
                is_copied = True
                continue
            is_set = name == "STORE_ATTR" or (is_copied and name in ("LOAD_ATTR", "LOAD_METHOD"))
            if is_set or name in ("LOAD_ATTR", "LOAD_METHOD"):
                names.append(argument)
            if not is_set and name in ("LOAD_ATTR", "LOAD_METHOD"):
                continue
            if name != "LOAD_SUPER_ATTR":
                yield _Access(of_self, tuple(names), is_set)
            names, of_self, is_copied = [], False, False
        if name == "LOAD_GLOBAL":
            names = [argument]
        elif name == "STORE_GLOBAL":
            yield _Access(False, (argument,), True)
        elif name.startswith(("LOAD_FAST", "LOAD_DEREF")) or (name.endswith("LOAD_FAST") and type(argument) is tuple):
            of_self = own is not None and own == (argument[-1] if isinstance(argument, tuple) else argument)


def _fills_any(function: FunctionType) -> bool:
    """Return whether a function, or one in it, puts something into a container, which may be one that it reads."""
    return any(
        FILLING & {*code.co_names} or any(each.opname == "STORE_SUBSCR" for each in dis.get_instructions(code))
        for code in _codes(function.__code__, None)
    )
