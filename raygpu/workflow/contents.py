"""Texts of what values hold, which are equal where the contents are: to see what a call has changed in place."""

from __future__ import annotations

import functools
import hashlib
import inspect
from argparse import Namespace
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np

from raygpu.training.users_files import is_users_module

PLAIN = bool | int | float | complex | str | bytes | np.generic | None
CONTAINERS = (list, dict, set, tuple, frozenset, deque)
LARGE = 2**20
"""Bytes of an array or a text above which a sample of it is read."""
SAMPLED = 4096
"""Number of elements of such a sample."""
MOST_ELEMENTS = 1000
"""Number of elements of a container that are read, beside its length."""
MOST_PARTS = 20_000
"""Number of parts of a value that are read, of all its containers and objects together."""
DEPTH = 30


def content(value: Any, leave_out: Collection[str] = ()) -> str:
    """Return a text of what a value holds.

    Arrays and tensors are read by value, containers, the user's own objects and those of scikit-learn by their parts;
    large ones in part. Any other object counts by its identity. leave_out: names of an object's attributes that do not
    count.
    """
    return _Reading().text(value, leave_out)


def is_read(value: Any) -> bool:
    """Return whether `content` shows a change of a value: of a Keras layer without weights, as TextVectorization, it
    does not."""
    if isinstance(value, PLAIN | np.ndarray | list | dict | set | tuple | frozenset | deque):
        return True
    kind = _kind(value)
    return bool(value.weights) if kind == "layer" else kind != ""


def has_parts(value: Any) -> bool:
    """Return whether an object's attributes are read one by one: of the user's own classes, namespaces, estimators."""
    kind = type(value)
    names = {each.__module__.partition(".")[0] for each in kind.__mro__}
    own = isinstance(value, Namespace | SimpleNamespace) or _is_users(kind.__module__)
    return (own or "sklearn" in names) and not isinstance(value, CONTAINERS)


def _kind(value: Any) -> str:
    """Return how an object is read; an empty text for one that is not."""
    packages = {each.__module__.partition(".")[0] for each in type(value).__mro__}
    if hasattr(value, "detach") and "torch" in packages:
        return "tensor"
    if "pandas" in packages and hasattr(value, "to_numpy"):
        return "table"
    if "keras" in packages and hasattr(value, "weights"):
        return "layer"
    if packages & {"keras", "tensorflow"} and hasattr(value, "numpy"):
        return "variable"
    return "parts" if has_parts(value) or hasattr(type(value), "named_parameters") else ""


_is_users = functools.cache(is_users_module)


class _Reading:
    """One reading of a value."""

    def __init__(self) -> None:
        self._left = MOST_PARTS
        self._around = set[int]()
        """Ids of the containers and objects that are being read."""

    def text(self, value: Any, leave_out: Collection[str] = ()) -> str:
        """Return a text of a value, or an empty one once enough has been read."""
        self._left -= 1
        if self._left < 0:
            return ""
        if isinstance(value, PLAIN):
            return f"{type(value).__name__} {_shortened(value)!r}"
        if id(value) in self._around or len(self._around) > DEPTH:
            return "..."
        self._around.add(id(value))
        try:
            return f"{type(value).__name__}({'; '.join(self._parts(value, leave_out))})"
        except Exception:  # noqa: BLE001 - objects of libraries and of the user's may raise anything
            return _identity(value)
        finally:
            self._around.discard(id(value))

    def _parts(self, value: Any, leave_out: Collection[str]) -> Iterator[str]:
        if isinstance(value, np.ndarray):
            yield from self._array(value)
        elif isinstance(value, dict):
            yield str(len(value))
            for key, each in islice(value.items(), MOST_ELEMENTS):
                yield f"{self.text(key)}: {self.text(each)}"
        elif isinstance(value, set | frozenset):
            few = sorted(map(self.text, value)) if len(value) <= MOST_ELEMENTS else ()
            yield from (str(len(value)), *few)
        elif isinstance(value, CONTAINERS):
            yield str(len(value))
            yield from map(self.text, islice(value, MOST_ELEMENTS))
        else:
            yield from self._object(value, leave_out)

    def _array(self, array: np.ndarray) -> Iterator[str]:
        yield f"{array.dtype} {array.shape}"
        if array.dtype.hasobject:
            yield from map(self.text, islice(array.flat, MOST_ELEMENTS))
        elif not isinstance(array, np.memmap):  # whose file the workers read too
            if array.nbytes > LARGE:
                is_flat = array.flags.c_contiguous or array.flags.f_contiguous
                array = (
                    array.ravel("K")[:: max(1, array.size // SAMPLED)] if is_flat else np.asarray(array.flat[:SAMPLED])
                )
            yield hashlib.sha1(array.tobytes(), usedforsecurity=False).hexdigest()

    def _object(self, value: Any, leave_out: Collection[str]) -> Iterator[str]:
        match _kind(value):
            case "tensor":
                from raygpu.training.torch.value_texts import tensor_text

                yield tensor_text(value)
            case "table":
                columns = [value] if value.ndim == 1 else (value.iloc[:, i] for i in range(value.shape[1]))
                for column in islice(columns, MOST_ELEMENTS):
                    yield f"{self.text(column.name)}: {self.text(column.to_numpy())}"
            case "layer":
                yield from (self.text(np.asarray(weight)) for weight in value.weights)
            case "variable":
                yield self.text(np.asarray(value))
            case "parts":
                for name, part in attributes(value):
                    lazy = isinstance(inspect.getattr_static(type(value), name, None), functools.cached_property)
                    if name not in leave_out and not lazy:
                        yield f"{name}: {self.text(part)}"
            case _:
                yield _identity(value)


def attributes(owner: object) -> Iterator[tuple[str, Any]]:
    """Yield an object's attributes of its own by name, those of slots too."""
    yield from [*getattr(owner, "__dict__", {}).items()]
    for kind in type(owner).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(owner, name):
                yield name, getattr(owner, name)


def _shortened(value: Any) -> Any:
    if isinstance(value, str | bytes) and len(value) > LARGE:
        return len(value), value[:SAMPLED], value[-SAMPLED:]
    return value


def _identity(value: Any) -> str:
    """Return the text of an object that is not read: of one that compares by value, as a path, its own text."""
    kind = type(value)
    if kind.__hash__ is not None and any("__eq__" in vars(each) for each in kind.__mro__[:-1]):
        return f"{kind.__name__} {str(value)[:SAMPLED]}"
    return f"{kind.__name__} at {id(value)}"
