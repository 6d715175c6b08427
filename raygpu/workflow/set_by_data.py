"""Detect state that `data()` stores in attributes or globals: workers do not run `data()` and would miss it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

from raygpu.experiment import Experiment
from raygpu.workflow.contents import CONTAINERS, content, is_read, sure_content
from raygpu.workflow.dotted_names import End
from raygpu.workflow.names_used import BY_RAYGPU, CHANGING, LOADERS, Name, own_changes, use_of


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
        self._before = {name: _Earlier(end, self._sure(end), self._content(end)) for name, _, end in self._values()}

    def _values(self) -> Iterator[tuple[Name, str, End]]:
        """Yield what methods read, with the name of a method, and its present value; but for what they set."""
        for name, reader in self._use.read.items():
            end = self._use.end(self._experiment, name)
            if not self._use.set_here.intersection(end.places) and not _is_by_raygpu(end):
                yield name, reader, end

    def changed(self) -> str | None:
        """Return the first of them that surely has another value by now; None if none has: another object, or other
        contents of an array, a tensor or a container."""
        for name, reader, end, is_sure in self._changes():
            if is_sure:
                return f"{_words(name, end)}, which {reader}() reads"
        return None

    def _changes(self) -> Iterator[tuple[Name, str, End, bool]]:
        """Yield what has changed, and whether it is surely what a method reads."""
        for name, reader, end in self._values():
            earlier = self._before.get(name)
            if earlier is None or len(earlier.end.places) != len(end.places):  # of an object that has only been made
                yield name, reader, end, True
                continue
            is_same = end.value is earlier.end.value
            is_own_memo = is_same and isinstance(end.value, CONTAINERS) and self._use.filled_here & {*end.places[-1:]}
            if not is_own_memo and self._content(end) != earlier.content:
                yield name, reader, end, self._sure(end) != earlier.sure

    def _content(self, end: End) -> str:
        return content(end.value, self._does_not_count)

    def _sure(self, end: End) -> str:
        return sure_content(end.value, with_weights=end.is_exact)

    def _does_not_count(self, owner: Any, name: str, value: Any) -> bool:
        """Return whether methods set or fill an attribute of an object by themselves where they use it."""
        kind: Any = type(owner)
        set_here, filled = _by_itself(kind)
        if name in set_here or (id(owner), name) in self._use.set_here:
            return True
        return isinstance(value, CONTAINERS) and (name in filled or (id(owner), name) in self._use.filled_here)

    def doubt(self) -> str | None:
        """Return the change of `data()` that other methods may read or not, in words; None without one."""
        for name, reader, end, is_sure in self._changes():
            if not is_sure:
                return f"changes {_words(name, end)}, which {reader}() uses as a whole"
        readers = {(name[0], name[1][:1]): reader for name, reader in self._use.read.items()}
        for name in self._loading.read:
            variables, path = name
            if len(path) < 2 or not path[-1].startswith(CHANGING) or (variables, path[:1]) not in readers:
                continue
            value = self._use.end(self._experiment, (variables, path[:-1])).value
            is_call = callable(getattr(value, path[-1], None)) and not isinstance(value, ModuleType | type)
            if is_call and not is_read(value):
                words = _dotted(variables, path[:-1])
                return f"calls {words}.{path[-1]}(), and {readers[variables, path[:1]]}() reads {words}"
        return None


class _Earlier:
    """A value as it was: the object itself, and texts of its contents."""

    def __init__(self, end: End, sure: str, content: str) -> None:
        self.end, self.sure, self.content = end, sure, content


def _words(name: Name, end: End) -> str:
    """Return the name of what was compared: without the parts that an object computes."""
    return _dotted(name[0], name[1][: len(end.places)])


def _dotted(variables: int | None, path: tuple[str, ...]) -> str:
    return f"{'self.' if variables is None else 'the global '}{'.'.join(path)}"


def _is_by_raygpu(end: End) -> bool:
    """Return whether a method that raygpu calls itself sets an attribute on the way, as a data set's file."""
    for owner, (_, name) in zip(end.owners, end.places, strict=True):
        if not isinstance(owner, dict | ModuleType | type):
            kind: Any = type(owner)
            set_here, filled = _by_itself(kind, BY_RAYGPU)
            if name in set_here or (name in filled and isinstance(end.value, CONTAINERS)):
                return True
    return False


@cache
def _by_itself(kind: Any, methods: tuple[str, ...] = ()) -> tuple[set[str], set[str]]:
    """Return what these methods of a class set and fill; without them, its special methods, by which an object is
    called or indexed, and those that raygpu or torch call."""
    special = (name for name in dir(kind) if name.startswith("__") and name not in ("__init__", "__new__"))
    return own_changes(kind, methods or [*special, "forward", *BY_RAYGPU])
