"""States of the generators that Keras draws random numbers from, in an order that is the same in every process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from raygpu.training.keras.quiet_import import tf

RANDOM_STATE = "seed_generator_state"
"""Part of the name of a generator's state."""

SHARED = (
    "the models of a split device would share a layer with random numbers, or a keras.random.SeedGenerator, of the"
    " experiment's module or class: make it in model(hp), keep the layer in an attribute of the experiment, or train"
    " with --gpu.mode process"
)


def random_states(*traced: Any) -> list[tf.Variable]:
    """Return the generator states that traced functions draw from, each once, in the order of their first use.

    They belong to Dropout layers, to an experiment's own generators, to those of its module and to keras.random. Their
    names are no order: Keras numbers generators from the start for each trial, and those of a module are older.

    traced: of type `tf.types.experimental.ConcreteFunction`.
    """
    states: dict[int, tf.Variable] = {}
    for each in traced:
        by_handle = {id(variable.handle): variable for variable in each.variables if RANDOM_STATE in variable.name}
        used = (by_handle.get(id(tensor)) for tensor in each.captured_inputs)
        states |= {id(variable): variable for variable in used if variable is not None}
    return list(states.values())


def require_apart(members: Iterable[Iterable[tf.Variable]]) -> None:
    """Raise ValueError if two trainings of this process draw from the same generator at once.

    members: the generator states of each.
    """
    seen: set[int] = set()
    for states in members:
        states = list(states)
        if any(id(state) in seen for state in states):
            raise ValueError(SHARED)
        seen |= {id(state) for state in states}
