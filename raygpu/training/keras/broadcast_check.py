"""A loss or metric that compares each output with each target by broadcasting, found on a few samples."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from raygpu.planning.batches import EVALUATION_BATCH
from raygpu.training.base import LOSS
from raygpu.training.keras.keras_private_api import carried
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.random_outputs import random_outputs
from raygpu.training.keras.reduction import Loss
from raygpu.training.keras.solo import KerasSolo, in_float32
from raygpu.training.random_outputs import SEEDS
from raygpu.training.sample_pairs import TARGETS, Rows, broadcast_shapes, common_shape, over_pairs, varied_rows

Score = Callable[[Any, Any], Mapping[str, Any]]


def require_no_broadcast(training: KerasSolo) -> None:
    """Raise ValueError if the loss or a metric of a batch is that of all pairs of an output and a target.

    Outputs (batch, 1) and targets (batch,) are compared so without an error. What cannot be evaluated on single samples
    passes.
    """
    broadcast: list[str] = []
    shapes = None
    with contextlib.suppress(Exception):  # of the user's code, where it is called eagerly and on single samples
        inputs, targets = training.validation_data.chosen(slice(0, min(EVALUATION_BATCH, training.num_validation)))
        outputs = in_float32(training.model(inputs, training=False))
        every = [[tuple(leaf.shape) for leaf in keras.tree.flatten(each)] for each in (outputs, targets)]
        shapes = broadcast_shapes(*every)
        if shapes is None:
            return
        some_outputs, some_targets = _few(outputs, targets)
        for score, each in _scores(training, some_outputs):
            with contextlib.suppress(Exception):
                broadcast += _broadcast(score, each, some_targets)
    if broadcast:
        assert shapes is not None
        who = "loss()" if broadcast[0] == LOSS else f"the metric {broadcast[0]!r}"
        raise ValueError(
            f"{who} gets outputs {_shapes(outputs)} and targets {_shapes(targets)}, and compares each with each:"
            f" reshape one of them, as keras.ops.reshape(targets, {common_shape(*shapes, 'outputs')})"
        )


def _scores(training: KerasSolo, outputs: Any) -> Iterator[tuple[Score, Any]]:
    """Yield functions of outputs and targets that return the loss, or the metrics, by name, each with outputs: the
    model's, and for the metrics random ones too."""
    yield lambda outputs, targets: {LOSS: training.experiment.loss(outputs, targets)}, outputs
    yield training.experiment.metrics, outputs
    for seed in SEEDS:
        yield training.experiment.metrics, random_outputs(outputs, seed)


def _few(outputs: Any, targets: Any) -> tuple[Any, Any]:
    """Return a few of the samples, with different targets. Raises ValueError for outputs without samples."""
    (_,) = {leaf.shape[0] for leaf in keras.tree.flatten((outputs, targets))}
    rows = varied_rows([np.asarray(leaf) for leaf in keras.tree.flatten(targets)])
    return _taken(outputs, rows), _taken(targets, rows)


def _taken(tree: Any, rows: Sequence[int] | np.ndarray) -> Any:
    """Return some samples of outputs or targets, with their masks and logits."""

    def chosen(tensor: Any) -> Any:
        """Return the samples of one tensor."""
        return tf.gather(tensor, rows)

    return keras.tree.map_structure(lambda leaf: carried(chosen, leaf), tree)


def _broadcast(score: Score, outputs: Any, targets: Any) -> list[str]:
    """Return the names of the scores that are those of all pairs. Raises what `score` does on these samples.

    All targets are paired with each output, and each target by name with each output and the other targets: a loss
    may compare them rightly in all terms but one.
    """
    leaves = keras.tree.flatten(targets)
    groups = [range(len(leaves)), *([[place] for place in range(len(leaves))] if 1 < len(leaves) <= TARGETS else [])]

    @cache
    def scores(rows: Rows) -> Mapping[tuple[str, str], float]:
        """Return the scores of some of the samples."""
        return _numbers(score(_taken(outputs, rows), _taken(targets, rows)))

    return [
        name
        for group in groups
        for name, _ in over_pairs(
            scores,
            lambda row, column, group=group: _numbers(score(*_pair(outputs, targets, row, column, group))),  # type: ignore[misc]
            len(leaves[0]),
        )
    ]


def _pair(outputs: Any, targets: Any, row: int, column: int, group: Collection[int]) -> tuple[Any, Any]:
    """Return a sample's output, and the target of another one: that of the same sample for leaves outside `group`."""
    leaves, other = (keras.tree.flatten(_taken(targets, [place])) for place in (row, column))
    mixed = [other[place] if place in group else leaf for place, leaf in enumerate(leaves)]
    return _taken(outputs, [row]), keras.tree.pack_sequence_as(targets, mixed)


def _numbers(scores: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """Return each score as a number, a `Mean` also without its denominator."""
    numbers = {}
    for name, value in scores.items():
        parts = Loss.of(value, [], in_float32)
        numbers[name, "total"] = float(parts.total)
        numbers[name, "value"] = float(parts.objective())
    return numbers


def _shapes(tree: Any) -> Any:
    """Return the shape of outputs or targets, or each one's by name."""
    return keras.tree.map_structure(lambda leaf: tuple(leaf.shape), tree)
