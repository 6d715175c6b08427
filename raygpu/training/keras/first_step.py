"""The first step of a Keras experiment on a few samples, before anything is started, and what it shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.experiment import Experiment, Splits
from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.reduction import Loss
from raygpu.training.keras.solo import RANDOM_STATE, KerasSolo, in_float32, no_gpu

DRAWING = {"Multinomial", "ParameterizedTruncatedNormal", "RandomGamma", "RandomPoissonV2", "RandomShuffle"}
DRAWING |= {"RandomStandardNormal", "RandomUniform", "RandomUniformInt", "TruncatedNormal"}
"""Operators of `tf.random`, whose generator is TensorFlow's own."""
LOST = "{} while it trains, and a checkpoint does not hold it: {}"
OWN_LOOP = (
    "model(hp) returns a model {}: it is trained by the experiment's loss() and the hyper-parameters' optimizer and"
    " schedule, not by {}"
)


def first_result(
    experiment: Experiment, splits: Splits, hp: Mapping[str, Any]
) -> tuple[EpochResult, frozenset[str], tuple[str, ...], frozenset[str]]:
    """Train and evaluate on a few samples, on the CPU, before anything is started.

    Returns the result, the names of the hyper-parameters that were read, a line for each thing that a training ignores
    or a checkpoint does not hold, and the names of the metrics that a loaded model has not. A very large model is
    evaluated alone. splits: the few samples. Raises any exception of the experiment.
    """
    settings = Settings(epochs=1, threads=tf.config.threading.get_intra_op_parallelism_threads(), precision="float32",
                        folder=Path())  # fmt: skip
    with no_gpu():
        training = KerasSolo(experiment, splits, Trial("t0000", 0, hp), settings)
        trains = training.model.count_params() <= base.LARGE
        before = _unsaved(training) if trains else []
        result = base.first_result(training, training.model.count_params())
        _require_no_broadcast(training)
        _require_no_sums(training)
        lines, lost = _lost(training, before)
        if trains and any(operator in DRAWING for operator in _operators(training)):
            lines.append(LOST.format("tf.random draws numbers", "keras.random's are drawn again where a trial goes on"))
    return result, frozenset(training.hp.names_read), (*_own_loop(training.model), *lines), lost


def _require_no_broadcast(training: KerasSolo) -> None:
    """Raise ValueError if the loss of outputs (batch, 1) and targets (batch,) is that of (batch, batch) pairs."""
    inputs, targets = training.validation_data.chosen(slice(0, min(EVALUATION_BATCH, training.num_validation)))
    outputs = in_float32(training.model(inputs, training=False))
    if isinstance(targets, dict) or not tf.is_tensor(outputs) or not targets.dtype.is_floating:
        return
    if outputs.shape != targets.shape and tf.size(outputs) == tf.size(targets) and tf.size(targets) > 1:
        loss, alike = (
            Loss.of(training.experiment.loss(outputs, each), [], in_float32).objective()
            for each in (targets, tf.reshape(targets, outputs.shape))
        )
        if not np.allclose(loss, alike, rtol=1e-4):
            raise ValueError(
                f"loss() gets outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}, and compares each"
                " with each: reshape one of them, as keras.ops.reshape(targets, outputs.shape)"
            )


def _require_no_sums(training: KerasSolo) -> None:
    """Raise ValueError if an object of `keras.metrics` in the experiment adds up batches and epochs."""
    own = list(vars(training.experiment).values())
    for value in list(own):
        own += value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    for metric in [value for value in own if isinstance(value, keras.metrics.Metric)]:
        before = [variable.numpy() for variable in metric.variables]
        training.evaluate()
        if not all(np.array_equal(*pair) for pair in zip(before, metric.variables, strict=True)):
            raise ValueError(
                f"the experiment's keras.metrics.{type(metric).__name__} adds up all batches and epochs: compute the"
                " metric of a batch, as by keras.metrics.sparse_categorical_accuracy, or call reset_state() first"
            )


def _own_loop(model: Any) -> Iterator[str]:
    """Yield a line for what a model has for Keras' `fit`, which does not train it here."""
    if model.compiled:
        yield OWN_LOOP.format("that is compiled", "what compile() got")
    if type(model).train_step is not keras.Model.train_step:
        yield OWN_LOOP.format("with a train_step() of its own", "that")


def _unsaved(training: KerasSolo) -> list[tuple[Any, np.ndarray]]:
    """Return the variables that a step reaches and a checkpoint does not hold, each with its value."""
    training._trace()
    saved = {id(each.value) for each in (*training.model.variables, *training.optimizer.variables)}
    reached = training._train_steps.variables
    return [(each, each.numpy()) for each in reached if id(each) not in saved and RANDOM_STATE not in each.name]


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
    which = ", ".join(dict.fromkeys(variable.name.partition(":")[0] for variable, _ in changed))
    advice = "keep what a model changes in weights of its layers, by add_weight(), and draw by keras.random"
    return [LOST.format(f"tf.Variable {which} changes", advice)], frozenset(names)


def _operators(training: KerasSolo) -> Iterator[str]:
    """Yield the names of the operators of a step."""
    graph = training._train_steps.graph.as_graph_def()
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            yield node.op
