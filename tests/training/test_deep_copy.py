"""A copy of a user's object has functions of its own: what they hold is the copy's."""

from __future__ import annotations

import copy
import functools
import math
import random
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from raygpu.training.deep_copy import deep_copy


class Keeper:
    """An object with one attribute that a trial changes, and another one that reads it."""

    def __init__(self, make: Callable[[Keeper], Any]) -> None:
        self.value = 0
        self.read = make(self)

    def get(self, extra: int = 0) -> int:
        return self.value + extra


def wrapped(keeper: Keeper) -> Callable[[], int]:
    @functools.wraps(keeper.get)
    def read() -> int:
        return keeper.get()

    return read


def keyword(keeper: Keeper) -> Callable[[], int]:
    def read(*, keeper: Keeper = keeper) -> int:
        return keeper.value

    return read


def with_a_module(keeper: Keeper) -> Callable[[], int]:
    used = math
    return lambda: int(used.floor(keeper.value))


def recursive(keeper: Keeper) -> Callable[..., int]:
    def read(times: int = 2) -> int:
        return read(times - 1) if times else keeper.value

    return read


WAYS: dict[str, Callable[[Keeper], Any]] = {
    "closure": lambda keeper: lambda: keeper.value,
    "default": lambda keeper: lambda keeper=keeper: keeper.value,
    "keyword": keyword,
    "method": lambda keeper: keeper.get,
    "partial": lambda keeper: functools.partial(keeper.get, 0),
    "partial of a closure": lambda keeper: functools.partial(lambda extra: keeper.get(extra), 0),
    "wraps": wrapped,
    "cache": lambda keeper: functools.lru_cache(keeper.get),
    "cache of a closure": lambda keeper: functools.lru_cache(maxsize=None)(lambda: keeper.value),
    "weak reference": lambda keeper: functools.partial(lambda held: held().value, weakref.ref(keeper)),
    "weak proxy": lambda keeper: functools.partial(lambda held: held.value, weakref.proxy(keeper)),
    "weak method": lambda keeper: functools.partial(lambda held: held()(), weakref.WeakMethod(keeper.get)),
    "module": with_a_module,
    "recursive": recursive,
    "compiled": lambda keeper: torch.compile(keeper.get, backend="eager"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_function_of_a_copy_reads_the_copy(way: str) -> None:
    keeper = Keeper(WAYS[way])
    copied = deep_copy(keeper)
    copied.value = 5
    assert copied.read() == 5
    assert keeper.read() == 0


def test_a_method_of_a_container_is_bound_to_the_copy() -> None:
    seen: list[int] = []
    add, size, seen_by_copy = deep_copy((seen.append, seen.__len__, seen))
    add(1)
    assert (size(), seen_by_copy, seen) == (1, [1], [])
    log = Log()
    log_of_copy = deep_copy(log)
    log_of_copy.append(2)
    assert (log_of_copy, log) == ([2, 2], [])
    draw, draw_of_copy = (rng := np.random.default_rng(0)).normal, deep_copy(rng.normal)
    assert draw() == draw_of_copy()


class Log(list[int]):
    """A list whose own method calls the one that it overrides."""

    def __init__(self) -> None:
        self.plain = super().append

    def append(self, value: int) -> None:
        self.plain(value)
        self.plain(value)


def test_methods_and_functions_of_other_c_code_stay_as_they_are() -> None:
    lock = threading.Lock()
    for method in (math.floor, torch.relu, dict.fromkeys, sys.stdout.write, lock.acquire, (x for x in "").__next__):
        assert deep_copy([method]) == [method]


def test_a_weak_reference_may_come_before_what_owns_its_object() -> None:
    keeper, elsewhere = Keeper(lambda keeper: keeper.get), Keeper(lambda keeper: keeper.get)
    reference, to_elsewhere, copied = deep_copy((weakref.ref(keeper), weakref.ref(elsewhere), keeper))
    assert reference() is copied is not keeper
    assert to_elsewhere() is elsewhere, "the copy of what nothing owns would be gone"


def test_a_name_that_two_functions_share_is_shared_by_their_copies_alone() -> None:
    count = 0

    def add() -> None:
        nonlocal count
        count += 1

    add_of_copy, read_of_copy = deep_copy((add, lambda: count))
    add_of_copy()
    assert (read_of_copy(), count) == (1, 0)


def test_what_a_module_s_patched_forward_and_hook_reach_is_the_copy_s() -> None:
    layer, seen = nn.Linear(2, 2), dict[str, torch.Tensor]()
    plain = layer.forward
    layer.scale = nn.Parameter(torch.zeros(1))
    layer.forward = lambda x, layer=layer: plain(x) * layer.scale  # type: ignore[method-assign]
    layer.register_forward_hook(lambda module, inputs, outputs: seen.update(outputs=outputs))
    copied, seen_by_copy = deep_copy((layer, seen))
    copied(torch.ones(1, 2)).sum().backward()
    assert copied.scale.grad is not None
    assert layer.scale.grad is None
    assert (list(seen_by_copy), list(seen)) == (["outputs"], [])


def test_functions_that_hold_nothing_and_those_of_libraries_stay_as_they_are() -> None:
    @functools.lru_cache
    def square(x: int) -> int:
        return x * x

    def named(hp: Mapping[str, Any]) -> Any:
        return hp["x"]

    for function in (square, named, F.max_pool2d, math.floor):
        assert deep_copy([function]) == [function]


def of_this_module(x: int, y: int = 2) -> int:
    return x + y


def test_a_function_that_its_module_has_by_name_stays_for_pickles_and_comparisons() -> None:
    assert deep_copy([of_this_module]) == [of_this_module]
    compiled = torch.compile(of_this_module, backend="eager")
    assert deep_copy([compiled]) == [compiled], "it would be compiled anew for each trial"


def test_a_copy_has_the_names_of_its_function() -> None:
    value = 1

    def named(x: int, *, y: int = 2) -> int:
        """Add."""
        return x + y + value

    named.note = [3]  # type: ignore[attr-defined]
    made = deep_copy(named)
    assert made is not named
    assert (made.__name__, made.__qualname__, made.__doc__) == (named.__name__, named.__qualname__, "Add.")
    assert (made.__module__, made.__annotations__) == (__name__, named.__annotations__)
    assert made(1) == 4
    assert vars(made) == {"note": [3]}


@pytest.mark.parametrize("draw", [np.random.rand, random.random, lambda: random.uniform(0, 1), random.uniform])
def test_functions_of_the_global_generators_draw_from_these(draw: Callable[..., float]) -> None:
    bounds = (0, 1) if draw is random.uniform else ()
    held = deep_copy(lambda: draw(*bounds))
    drawn = []
    for function in (held, held, lambda: draw(*bounds)):
        random.seed(1)
        np.random.seed(1)
        drawn.append(function())
    assert drawn[0] == drawn[1] == drawn[2]


def test_every_other_copy_is_python_s_own() -> None:
    keeper = Keeper(WAYS["closure"])
    deep_copy(keeper)
    assert copy.deepcopy(keeper).read is keeper.read
