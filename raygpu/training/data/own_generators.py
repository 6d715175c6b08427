"""Random generators that a data set holds, as its augmentations do: nobody seeds them for a sample."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

MOST, DEEPEST, LONGEST = 2000, 8, 64
"""Number of objects that are looked at, of steps from the data set to one, and of entries of a list: a data set may
hold millions."""
PLAIN = (str, bytes, int, float, complex, type(None), np.ndarray, ModuleType)


def own_generators(root: Any) -> list[Any]:
    """Return the generators of `random`, NumPy and torch that a data set or a function reaches by attributes, lists,
    closures and the names in its code, without the global ones."""
    kinds = _kinds()
    found: list[Any] = []
    seen: dict[int, Any] = {id(each): each for each in _global_generators()}
    waiting = deque([(root, 0)])
    while waiting and len(seen) < MOST:
        value, depth = waiting.popleft()
        if isinstance(value, PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, kinds):
            found.append(value)
        elif depth < DEEPEST:
            waiting.extend((part, depth + 1) for part in _parts(value, kinds))
    return found


def states(generators: list[Any]) -> list[bytes]:
    """Return the state of each generator, in a form that can be compared."""
    return [pickle.dumps(_state(generator)) for generator in generators]


def _kinds() -> tuple[type, ...]:
    torch = sys.modules.get("torch")
    return (random.Random, np.random.Generator, np.random.RandomState, *([] if torch is None else [torch.Generator]))


def _global_generators() -> list[Any]:
    """Return the generators that are seeded for each sample."""
    torch = sys.modules.get("torch")
    methods: list[Any] = [random.random, np.random.random]
    return [*(method.__self__ for method in methods), *([] if torch is None else [torch.default_generator])]


def _state(generator: Any) -> Any:
    if isinstance(generator, random.SystemRandom):
        return None  # it has none
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.get_state().numpy().tobytes()


def _parts(value: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield what an object holds."""
    if isinstance(value, dict):
        yield from islice(value.values(), LONGEST)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from islice(value, LONGEST)
    elif isinstance(value, partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType | BuiltinMethodType):
        yield from (value.__self__, getattr(value, "__func__", None))
    elif isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            with contextlib.suppress(ValueError):  # it is empty
                yield cell.cell_contents
        yield from value.__defaults__ or ()
        yield from (value.__globals__[name] for name in value.__code__.co_names if name in value.__globals__)
    elif isinstance(value, type):
        yield from _of_class(value, kinds)
    else:
        yield type(value)
        attributes = getattr(value, "__dict__", None)
        yield from [*attributes.values()] if isinstance(attributes, dict) else []


def _of_class(kind: type, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Yield a class' generators, its methods that read a sample, and those that these call by their names."""
    yield from (each for base in kind.__mro__ for each in vars(base).values() if isinstance(each, kinds))
    names = ["__getitem__", "__call__"]
    for name in names:
        member = inspect.getattr_static(kind, name, None)
        function = getattr(member, "__func__", member)  # of a static or a class method
        if isinstance(function, FunctionType):
            yield function
            names += [each for each in function.__code__.co_names if each not in names]
