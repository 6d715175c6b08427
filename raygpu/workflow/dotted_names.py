"""Follow a dotted name, as `self.stats.std` or `utils.TOK.vocabulary`, from object to object as far as it is data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from raygpu.training.users_files import is_users_module
from raygpu.workflow.contents import attributes, has_parts

Place = tuple[int, str]
"""The id of the dictionary, module, class or object that has an attribute, and the attribute's name."""
MISSING = "nothing of this name"
"""Value of an attribute that an object has not got."""
OF_FORM = frozenset(("shape", "ndim", "dtype", "size", "nbytes", "itemsize", "dim", "numel", "device"))
"""Attributes of arrays and tensors that do not tell their values."""


class _Computed:
    """Mark of attributes that are computed when they are read: methods, properties, and all of a library's objects."""


@dataclass(frozen=True, slots=True)
class End:
    """The object at which a name ends.

    is_exact: whether the whole name was followed, and not only up to the object that computes the rest.
    places: the places of the names that were followed.
    owners: the objects that have them.
    """

    value: Any
    is_exact: bool
    places: tuple[Place, ...]
    owners: tuple[Any, ...]


def follow(start: Any, path: tuple[str, ...]) -> End:
    """Follow these names from an object, or from a dictionary of global variables."""
    value, places, owners = start, list[Place](), list[Any]()
    for name in path:
        if isinstance(value, ModuleType | type) and not _is_own(value):
            return End(None, True, tuple(places), tuple(owners))
        following = value.get(name, MISSING) if value is start and type(start) is dict else _attribute(value, name)
        if following is _Computed:
            return End(value, False, tuple(places), tuple(owners))
        places.append((identity(value), name))
        owners.append(value)
        value = following
        if value is MISSING:
            break
    return End(value, True, tuple(places), tuple(owners))


def identity(owner: Any) -> int:
    """Return the id of an object; of a module, that of the dictionary of its variables."""
    return id(vars(owner)) if isinstance(owner, ModuleType) else id(owner)


def _is_own(value: Any) -> bool:
    return is_users_module(value.__name__ if isinstance(value, ModuleType) else value.__module__)


def _attribute(owner: Any, name: str) -> Any:
    try:
        return _stored(owner, name)
    except Exception:  # noqa: BLE001 - properties of libraries and of the user's may raise anything
        return _Computed


def _stored(owner: Any, name: str) -> Any:
    if isinstance(owner, ModuleType | type):
        return inspect.getattr_static(owner, name, MISSING)
    if name in OF_FORM and hasattr(owner, "shape") and hasattr(owner, "dtype"):
        return f"{owner.dtype} {tuple(owner.shape)}"
    is_network = hasattr(type(owner), "named_parameters")
    if not (has_parts(owner) or is_network):
        return _Computed
    of_class = inspect.getattr_static(type(owner), name, MISSING)
    own = dict(_with_parameters(owner) if is_network else attributes(owner))
    if name in own and not isinstance(of_class, functools.cached_property):
        return own[name]
    if of_class is MISSING and (is_network or not hasattr(type(owner), "__getattr__")):
        return MISSING
    return _Computed if of_class is MISSING or hasattr(type(of_class), "__get__") else of_class


def _with_parameters(network: Any) -> Iterator[tuple[str, Any]]:
    yield from attributes(network)
    for kind in ("_parameters", "_buffers", "_modules"):
        yield from getattr(network, kind, {}).items()
