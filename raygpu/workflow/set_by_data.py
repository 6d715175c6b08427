"""Detect state that `data()` stores in attributes or globals: workers do not run `data()` and would miss it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator
from types import ModuleType
from typing import Any

from raygpu.experiment import Experiment
from raygpu.training.users_files import is_users_module
from raygpu.workflow.contents import attributes, content, has_parts, is_read
from raygpu.workflow.names_used import CHANGING, LOADERS, own_changes, use_of

CONTAINERS = (list, dict, set)
MISSING = "nothing of this name"
"""Value of an attribute that an object has not got."""


class SetByData:
    """Attributes and global variables that an experiment's methods read, as they are before `data()` is called."""

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        contract = {
            name for base in type(experiment).__mro__ if base.__module__.startswith("raygpu.") for name in vars(base)
        }
        methods = [name for name in contract - set(LOADERS) if not name.startswith("__")]
        self._use = use_of(experiment, methods)
        self._loading = use_of(experiment, LOADERS)
        self._before = {words: _Earlier(value, kept) for words, _, value, kept in self._values()}

    def _values(self) -> Iterator[tuple[str, str, Any, Collection[str]]]:
        """Yield what methods read: its name in words, its first name, its present value, and the names of that value's
        attributes which the methods that read it set themselves."""
        for (variables, name, part), reader in self._use.read.items():
            if not {(variables, name, None), (variables, name, part)} & self._use.set_here:
                value, is_part, kept = _found(self._use.value(self._experiment, variables, name), part)
                words = f"{'self.' if variables is None else 'the global '}{name}{f'.{part}' if is_part else ''}"
                yield f"{words}, which {reader}() reads", name, value, kept

    def changed(self) -> str | None:
        """Return the first of them that has another value by now, or other contents; None if none has."""
        for words, name, value, kept in self._values():
            earlier = self._before.get(words)
            if earlier is None:  # as the attribute of an object that has only been made
                return words
            is_own_memo = value is earlier.value and isinstance(value, CONTAINERS) and name in self._use.filled_here
            if not is_own_memo and not earlier.is_still(value, kept):
                return words
        return None

    def doubt(self) -> str | None:
        """Return the call of `data()` that may change an object which cannot be looked into, and which of the other
        methods reads it; None without one."""
        readers = {(variables, name): reader for (variables, name, _), reader in self._use.read.items()}
        for variables, name, part in self._loading.read:
            if part is None or not part.startswith(CHANGING) or (variables, name) not in readers:
                continue
            value = self._use.value(self._experiment, variables, name)
            if callable(getattr(value, part, None)) and not isinstance(value, ModuleType | type) and not is_read(value):
                words = f"{'self.' if variables is None else 'the global '}{name}"
                return f"{words}.{part}(), and {readers[variables, name]}() reads {words}"
        return None


class _Earlier:
    """A value as it was: the object itself, and a text of its contents."""

    def __init__(self, value: Any, leave_out: Collection[str]) -> None:
        self.value = value
        self._content = content(value, leave_out)

    def is_still(self, value: Any, leave_out: Collection[str]) -> bool:
        """Return whether a value is the earlier one, or equals it."""
        return content(value, leave_out) == self._content


def _found(owner: Any, part: str | None) -> tuple[Any, bool, Collection[str]]:
    """Return the value of an attribute, whether it is compared by itself, and not the whole object that has it, and the
    names of that value's own attributes that do not count, because the methods that are called change them."""
    if isinstance(owner, ModuleType | type) and part is not None:
        if not is_users_module(owner.__name__ if isinstance(owner, ModuleType) else owner.__module__):
            return None, True, ()
        return inspect.getattr_static(owner, part, MISSING), True, ()
    if part is not None and has_parts(owner):
        own = dict(attributes(owner))
        of_class = inspect.getattr_static(type(owner), part, MISSING)
        if part in own:
            return own[part], True, _kept_by(own[part], None)
        if of_class is MISSING and not hasattr(type(owner), "__getattr__"):
            return MISSING, True, ()
        if not hasattr(type(of_class), "__get__") and of_class is not MISSING:
            return of_class, True, ()
    return owner, False, _kept_by(owner, part)


def _kept_by(owner: Any, method: str | None) -> set[str]:
    """Return the attributes that an object's method changes by itself; without a method, those that its special
    methods change, by which an object is called or indexed."""
    if isinstance(owner, type | ModuleType) or not has_parts(owner):
        return set()
    special = (name for name in dir(type(owner)) if name.startswith("__") and name not in ("__init__", "__new__"))
    set_here, filled = own_changes(type(owner), special if method is None else [method])
    return set_here | {name for name, value in attributes(owner) if name in filled and isinstance(value, CONTAINERS)}
