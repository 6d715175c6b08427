"""Python code that TensorFlow traces once, and that would have to run for each batch: random numbers and counters."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from raygpu.training.keras.keras_private_api import all_layers, default_seeds_apart
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.solo import KerasSolo

ITEMS = 1000
"""Number of items of a container that are compared."""
DEPTH = 3
"""Depth to which containers and objects of the experiment's own module are compared."""
ARRAY_BYTES = 1_000_000
"""Size of arrays above which their numbers are not compared."""
PLAIN = bool | int | float | complex | str | bytes | np.generic | itertools.count | None
GENERATORS = np.random.Generator | np.random.RandomState | random.Random


def trace(training: KerasSolo, *, steps: bool) -> None:
    """Trace the evaluation, and the training if `steps`, as the training will run it.

    Raises ValueError if their Python code draws random numbers, or computes with a number that it changes: a training
    would keep those of the moment of tracing. Code that does so in the first tracing alone, as to make a table once,
    passes. Raises any exception of the experiment.
    """
    with default_seeds_apart():
        before = _python_state(training)
        _graphs(training, steps)
        changed = _changed(before, _python_state(training))
        if changed:
            _require_same(training, steps, changed)


def _require_same(training: KerasSolo, steps: bool, changed: list[str]) -> None:
    """Trace twice more; raise ValueError if the numbers with these names change again, and with them the graphs."""
    first_tracing = training._train_steps, training.random_states, training._evaluate_rows
    before, graphs = _python_state(training), []
    try:
        for _ in range(2):
            graphs.append(_graphs(training, steps))
    except Exception:  # noqa: BLE001 - a tensor of the first tracing that the experiment has kept
        return
    finally:
        training._train_steps, training.random_states, training._evaluate_rows = first_tracing
    again = set(_changed(before, _python_state(training)))
    names = [name for name in changed if name in again]
    drawn = [name for name in names if isinstance(before.get(name), bytes)]
    if drawn:
        raise ValueError(
            f"random numbers are drawn from {drawn[0]} as a step is traced, which is done once, so that each"
            " batch would get the same ones: draw them by keras.random"
        )
    if names and graphs[0] != graphs[1]:
        raise ValueError(
            f"{', '.join(names)} changes as a step is traced, which is done once, so that each batch would be computed"
            " with the same value: keep what changes in a weight of the model, by add_weight()"
        )


def _graphs(training: KerasSolo, steps: bool) -> list[Counter[Any]]:
    """Trace; return how often each operator with each constant is in a graph."""
    training._evaluate_rows = tf.function(training._evaluate_batch)
    traced = []
    if steps:
        training._train_steps = None
        training.trace()
        traced.append(training._train_steps)
    traced.append(training.traced_evaluation())
    return [Counter(_operators(each.graph.as_graph_def())) for each in traced]


def _operators(graph: Any) -> Iterator[tuple[str, bytes]]:
    """Yield each operator of a graph and its functions, with the value of a constant that is a number."""
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            is_number = node.op == "Const" and node.attr["dtype"].type != tf.string.as_datatype_enum
            yield node.op, node.attr["value"].tensor.SerializeToString() if is_number else b""


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that differ or are new, as one that a method sets where its class has another."""
    return [name for name, value in after.items() if before.get(name) != value]


def _python_state(training: KerasSolo) -> dict[str, Any]:
    """Return by name what the code of a step may change in Python: generators as bytes, numbers as tuples and text."""
    state: dict[str, Any] = {
        "np.random": pickle.dumps(np.random.get_state()),
        "Python's random": pickle.dumps(random.getstate()),
    }
    user_layers = [layer for layer in all_layers(training.model) if type(layer).__module__.partition(".")[0] != "keras"]
    for holder in (training.experiment, *user_layers):
        module = type(holder).__module__
        for name, value in _held(holder):
            state[name] = _compared(value, module, DEPTH)
    return state


def _held(holder: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the attributes of an experiment or layer, of its classes, and of their globals."""
    for name, value in list(vars(holder).items()):
        yield f"{type(holder).__name__}'s self.{name}", value
    for kind in type(holder).__mro__:
        if kind.__module__.partition(".")[0] in ("raygpu", "keras", "builtins", "abc"):
            continue
        for name, value in list(vars(kind).items()):
            if isinstance(value, FunctionType):
                yield from _globals_of(value)
            elif not name.startswith("__"):
                yield f"{kind.__name__}.{name}", value


def _globals_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the globals that a function names, and of those of functions of its module."""
    functions, seen = deque([function]), set[str]()
    while functions:
        code = functions.popleft().__code__
        for name in {name for each in _codes(code) for name in each.co_names} - seen:
            seen.add(name)
            value = function.__globals__.get(name)
            if isinstance(value, FunctionType) and value.__module__ == function.__module__:
                functions.append(value)
            elif value is not None:
                yield f"the global {name}", value


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a function and of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _compared(value: Any, module: str, depth: int) -> Any:
    """Return what is compared of a value: None for one that is no number, generator, container or own object."""
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, GENERATORS):
        return pickle.dumps(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return repr(value.shape), hash(value.tobytes()) if value.nbytes <= ARRAY_BYTES else 0
    if depth and isinstance(value, Mapping):
        return tuple((repr(key), _compared(each, module, depth - 1)) for key, each in _items(value.items()))
    if depth and isinstance(value, list | tuple | set | frozenset | deque):
        return len(value), tuple(_compared(each, module, depth - 1) for each in _items(value))
    if depth and type(value).__module__ == module and not isinstance(value, type | keras.layers.Layer):
        return tuple(
            (name, _compared(each, module, depth - 1)) for name, each in _items(getattr(value, "__dict__", {}).items())
        )
    return None


def _items(values: Any) -> list[Any]:
    """Return the first items of a container."""
    return list(itertools.islice(values, ITEMS))
