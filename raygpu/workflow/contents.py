"""Texts of what values hold, which are equal where the contents are: to see what a call has changed in place."""

from __future__ import annotations

import functools
import hashlib
import inspect
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np

from raygpu.training.array_sample import LARGE, SAMPLED, spread
from raygpu.training.users_files import is_users_module

PLAIN = bool | int | float | complex | str | bytes | np.generic | None
CONTAINERS = (list, dict, set, tuple, frozenset, deque)
MOST_ELEMENTS = 1000
"""Number of elements of a container that are read, beside its length."""
MOST_PARTS = 20_000
"""Number of parts of a value that are read, of all its containers and objects together."""
MOST_BYTES = 2**27
"""Bytes of arrays that are read of a value; of the arrays after these, samples are."""
DEPTH = 30


def content(value: Any, leave_out: Callable[[Any, str, Any], bool] | None = None) -> str:
    """Return a text of what a value holds.

    Arrays and tensors are read by value, containers, the user's own objects and those of scikit-learn by their parts;
    large ones in part. Any other object counts by its identity. leave_out: tells of an object, the name of an attribute
    and its value whether it does not count.
    """
    return _Reading(leave_out).text(value)


def sure_content(value: Any, *, with_weights: bool) -> str:
    """Return a text of what a value holds without the attributes of objects, which count by their identity.

    with_weights: whether a network at the top counts by its parameters and buffers.
    """
    return _Reading(None, by_parts=False, with_weights=with_weights).text(value)


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

    def __init__(
        self,
        leave_out: Callable[[Any, str, Any], bool] | None,
        *,
        by_parts: bool = True,
        with_weights: bool = False,
    ) -> None:
        self._leave_out, self._by_parts, self._with_weights = leave_out, by_parts, with_weights
        self._left, self._bytes_left = MOST_PARTS, MOST_BYTES
        self._around = set[int]()
        """Ids of the containers and objects that are being read."""

    def text(self, value: Any) -> str:
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
            return f"{type(value).__name__}({'; '.join(self._parts(value))})"
        except Exception:  # noqa: BLE001 - objects of libraries and of the user's may raise anything
            return _identity(value)
        finally:
            self._around.discard(id(value))

    def _parts(self, value: Any) -> Iterator[str]:
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
            yield from self._object(value)

    def _array(self, array: np.ndarray) -> Iterator[str]:
        yield f"{array.dtype} {array.shape}"
        if array.dtype.hasobject:
            yield from map(self.text, islice(array.flat, MOST_ELEMENTS))
        elif not isinstance(array, np.memmap):  # whose file the workers read too
            self._bytes_left -= min(array.nbytes, LARGE)
            if array.nbytes > LARGE or self._bytes_left < 0:
                array = spread(array)
            yield hashlib.sha1(array.tobytes(), usedforsecurity=False).hexdigest()

    def _object(self, value: Any) -> Iterator[str]:
        match _kind(value):
            case "tensor":
                from raygpu.training.torch.value_texts import tensor_text

                yield tensor_text(value)
            case "table":
                columns = [value] if value.ndim == 1 else (value.iloc[:, i] for i in range(value.shape[1]))
                for column in islice(columns, MOST_ELEMENTS):
                    yield f"{self.text(column.name)}: {self.text(column.to_numpy())}"
            case "parts" if not self._by_parts:
                yield from self._weights(value)
            case "layer":
                yield from (self.text(np.asarray(weight)) for weight in value.weights)
            case "variable":
                yield self.text(np.asarray(value))
            case "parts":
                for name, part in attributes(value):
                    if not _is_memo(value, name) and not (self._leave_out and self._leave_out(value, name, part)):
                        yield f"{name}: {self.text(part)}"
            case _:
                yield _identity(value)

    def _weights(self, value: Any) -> Iterator[str]:
        """Yield the identity of an object, or a network's parameters and buffers."""
        if len(self._around) > 1 or not self._with_weights or not hasattr(type(value), "named_parameters"):
            yield _identity(value, by_value=False)
            return
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield f"{name}: {self.text(tensor)}"


def _is_memo(owner: Any, name: str) -> bool:
    """Return whether an attribute is a `cached_property`, or the mode of a network, which each training sets."""
    if name == "training" and hasattr(type(owner), "named_parameters"):
        return True
    return isinstance(inspect.getattr_static(type(owner), name, None), functools.cached_property)


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


def _identity(value: Any, *, by_value: bool = True) -> str:
    """Return the text of an object that is not read: of one that compares by value, as a path, its own text."""
    kind = type(value)
    if isinstance(value, MethodType):
        return f"{value.__func__.__qualname__} of {id(value.__self__)}"
    if by_value and kind.__hash__ is not None and any("__eq__" in vars(each) for each in kind.__mro__[:-1]):
        return f"{kind.__name__} {str(value)[:SAMPLED]}"
    return f"{kind.__name__} at {id(value)}"
