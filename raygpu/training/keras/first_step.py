"""The first step of a Keras experiment on a few samples, before anything is started, and what it shows."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.experiment import Experiment, Splits
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings
from raygpu.training.keras.broadcast_check import require_no_broadcast
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.random_states import RANDOM_STATE
from raygpu.training.keras.solo import KerasSolo, no_gpu
from raygpu.training.keras.tracing_check import trace
from raygpu.training.own_copy import own_copy
from raygpu.training.rounded_steps import rounding_lines

DRAWING = {"Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle"}
DRAWING |= {"RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"}
"""Operators of `tf.random`, whose generator is TensorFlow's own."""
GENERATOR_STATE = "StateVar"
"""Name of the variable of a `tf.random.Generator`."""
LOST = "{} while it trains, and a checkpoint does not hold it: {}"
UNTRAINED = (
    "self.{} gets a gradient and is no part of the model, so that no optimizer changes it: make it a part of what"
    " model(hp) returns, or set its trainable to False"
)
OWN_LOOP = (
    "model(hp) returns a model {}: it is trained by the experiment's loss() and the hyper-parameters' optimizer and"
    " schedule, not by {}"
)


def first_result(
    experiment: Experiment, splits: Splits, hp: Mapping[str, Any]
) -> tuple[EpochResult, frozenset[str], tuple[str, ...], frozenset[str]]:
    """Train and evaluate on a few samples, on the CPU, before anything is started.

    Returns the result, the names of the hyper-parameters that were read, a line for each thing that a training ignores
    or rounds away or a checkpoint does not hold, and the names of the metrics that a loaded model has not. A very large
    model is evaluated alone. splits: the few samples. Raises any exception of the experiment.
    """
    settings = Settings(epochs=1, threads=tf.config.threading.get_intra_op_parallelism_threads(), precision="float32",
                        folder=Path())  # fmt: skip
    with no_gpu():
        training = KerasSolo(own_copy(experiment), splits, Trial("t0000", 0, hp), settings)
        trains = training.model.count_params() <= base.LARGE
        trace(training, steps=trains)
        before = _unsaved(training, training._train_steps)
        result = base.first_result(training, training.model.count_params())
        require_no_broadcast(training)
        _require_no_sums(training)
        lines, lost = _lost(training, before)
        lines += _untrained(training) if trains else []
        if trains and any(operator in DRAWING for operator in _operators(training)):
            lines.append(LOST.format("tf.random draws numbers", "keras.random's are drawn again where a trial goes on"))
    # Of a large model, which takes no step, all variables count that may get a gradient.
    trained = training.model.trainable_variables if training.stepped is None else training.stepped
    ignored = [*_own_loop(training.model), *rounding_lines(variable.dtype for variable in trained)]
    return result, frozenset(training.hp.names_read), (*ignored, *lines), lost


def _untrained(training: KerasSolo) -> list[str]:
    """Return a line on a variable or layer of the experiment that gets a gradient and is not the model's."""
    trained = {id(variable) for variable in training.model.trainable_variables}
    kept = [
        (name, variable.value)
        for name, value in vars(training.experiment).items()
        for variable in _trainable(value)
        if id(variable) not in trained
    ]
    if not kept:
        return []
    rows = np.arange(*training.bounds[0])
    training.train_data.begin(1, iter([rows]))
    with tf.GradientTape() as tape:
        loss = training.loss(*training.train_data.chosen(tf.constant(rows))).objective()
    gradients = tape.gradient(loss, [variable for _, variable in kept])
    names = [name for (name, _), gradient in zip(kept, gradients, strict=True) if gradient is not None]
    return [UNTRAINED.format(names[0])] if names else []


def _trainable(value: Any) -> list[Any]:
    """Return the trainable variables of an attribute: of a variable, a layer, or a list or dictionary of them."""
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    variables = [each for each in items if isinstance(each, keras.Variable) and each.trainable]
    return variables + [each for item in items if isinstance(item, keras.Layer) for each in item.trainable_variables]


def _require_no_sums(training: KerasSolo) -> None:
    """Raise ValueError if scores depend on what an object of `keras.metrics`, or a variable of metrics(), adds up."""
    reached = _unsaved(training, training.traced_evaluation())
    scores = training.evaluate()
    changed = [(each, value) for each, value in reached if not np.array_equal(each.numpy(), value)]
    owners = _metric_objects() if changed else {}
    sums = [pair for pair in changed if id(pair[0]) in owners or _is_of_metrics(training, pair[0])]
    if not sums:
        return
    for place, (variable, value) in enumerate(sums):
        variable.assign(value + np.asarray((17 + 83 * place) % 101, value.dtype))  # which no few samples add up to
    later = training.evaluate()
    for variable, value in sums:
        variable.assign(value)
    if any(not np.isclose(value, later[name], 1e-4, 1e-6, equal_nan=True) for name, value in scores.items()):
        owner = owners.get(id(sums[0][0]))
        who = f"tf.Variable {_name(sums[0][0])}" if owner is None else f"keras.metrics.{type(owner).__name__}"
        raise ValueError(
            f"the experiment's {who} adds up all batches and epochs: compute the metric of a batch, as by"
            f" keras.metrics.sparse_categorical_accuracy{'' if owner is None else ', or call reset_state() first'}"
        )


def _is_of_metrics(training: KerasSolo, variable: Any) -> bool:
    """Return whether a variable of the evaluation is a number that no training step reaches."""
    if training._train_steps is None or GENERATOR_STATE in variable.name:
        return False
    is_number = variable.dtype.is_floating or variable.dtype.is_integer
    return is_number and all(each is not variable for each in training._train_steps.variables)


def _metric_objects() -> dict[int, Any]:
    """Return all objects of `keras.metrics` in this process, by the id of each of their variables."""
    objects = [each for each in gc.get_objects() if issubclass(type(each), keras.metrics.Metric)]
    return {id(variable.value): each for each in objects for variable in getattr(each, "variables", ())}


def _own_loop(model: Any) -> Iterator[str]:
    """Yield a line for what a model has for Keras' `fit`, which does not train it here."""
    if model.compiled:
        yield OWN_LOOP.format("that is compiled", "what compile() got")
    if type(model).train_step is not keras.Model.train_step:
        yield OWN_LOOP.format("with a train_step() of its own", "that")


def _unsaved(training: KerasSolo, traced: Any) -> list[tuple[Any, np.ndarray]]:
    """Return the variables that a traced function reaches and a checkpoint does not hold, each with its value."""
    saved = {id(each.value) for each in (*training.model.variables, *training.optimizer.variables)}
    # A graph has them in any order.
    reached = sorted(traced.variables, key=lambda each: str(each.name).lower()) if traced is not None else ()
    return [(each, each.numpy()) for each in reached if id(each) not in saved and RANDOM_STATE not in each.name]


def _name(variable: Any) -> str:
    """Return the name of a variable."""
    return str(variable.name.partition(":")[0])


def _lost(training: KerasSolo, before: list[tuple[Any, np.ndarray]]) -> tuple[list[str], frozenset[str]]:
    """Return a line on variables that training has changed and a checkpoint does not hold, and the names of the metrics
    of a loaded model that differ."""
    changed = [(variable, value) for variable, value in before if not np.array_equal(variable.numpy(), value)]
    if not changed:
        return [], frozenset()
    scores = training.evaluate()
    for variable, value in changed:
        variable.assign(value)
    loaded = training.evaluate()
    names = [f"validation/{name}" for name, value in scores.items() if not np.isclose(value, loaded[name], 1e-4, 1e-6)]
    which = ", ".join(dict.fromkeys(_name(variable) for variable, _ in changed))
    advice = "keep what a model changes in weights of its layers, by add_weight(), and draw by keras.random"
    return [LOST.format(f"tf.Variable {which} changes", advice)], frozenset(names)


def _operators(training: KerasSolo) -> Iterator[str]:
    """Yield the names of the operators of a step."""
    graph = training._train_steps.graph.as_graph_def()
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            yield node.op
