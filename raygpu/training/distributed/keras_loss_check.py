"""Evaluate a Keras experiment's loss on chosen samples, before it is trained in parts: see `loss_check`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from raygpu.experiment import Arrays, Experiment, Hyperparameters, take
from raygpu.training.distributed.loss_check import DOUBLE, SINGLE, Value
from raygpu.training.keras.data import tensors
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.solo import EVALUATION_BATCH, in_float32, initial_model, no_gpu


class KerasLossEvaluator:
    """An untrained model on the CPU, in float64 if its code takes that.

    with_metrics: whether metrics are evaluated too.
    """

    batch = EVALUATION_BATCH
    """Samples of a batch of an evaluation."""

    def __init__(
        self, experiment: Experiment, hp: Mapping[str, Any], inputs: Arrays, targets: Arrays, *, with_metrics: bool
    ) -> None:
        self._experiment, self._with_metrics = experiment, with_metrics
        self._hp, self._inputs, self._targets = hp, inputs, targets
        self.rounding = DOUBLE
        self._held: tuple[Any, Arrays, Any] | None = None
        before = keras.config.floatx(), keras.config.dtype_policy()
        try:
            self._prepare("float64", "float64")
            self.values(np.arange(2))
        except Exception:  # noqa: BLE001 - code that names float32; what else it raises, it raises again
            self.rounding = SINGLE
            self._prepare(*before)
        finally:
            self._set_types(*before)

    def _set_types(self, floatx: str, policy: Any) -> None:
        keras.config.set_floatx(floatx)
        keras.config.set_dtype_policy(policy)

    def _prepare(self, floatx: str, policy: Any) -> None:
        self._set_types(floatx, policy)
        with no_gpu():
            self._model = initial_model(self._experiment, Hyperparameters.of(self._hp), 0, self._inputs)

    def _outputs(self, rows: np.ndarray) -> Any:
        return in_float32(self._model(tensors(take(self._inputs, rows)), training=False))

    def values(self, rows: np.ndarray) -> dict[str, Value]:
        """Return the loss and the metrics of these samples, from a forward pass of these alone."""
        with no_gpu():
            return self._values(self._experiment, self._outputs(rows), take(self._targets, rows))

    def _values(self, experiment: Any, outputs: Any, targets: Arrays) -> dict[str, Value]:
        given = tensors(targets)
        found = {"loss": experiment.loss(outputs, given)}
        if self._with_metrics:
            found |= experiment.metrics(outputs, given)
        return {name: Value.of(value) for name, value in found.items()}

    def hold(self, rows: np.ndarray) -> None:
        """Keep the outputs of these samples for `held`. Raises ValueError if they cannot be cut into samples."""
        with no_gpu():
            outputs = self._outputs(rows)
        if not all(tuple(leaf.shape[:1]) == (len(rows),) for leaf in tf.nest.flatten(outputs)):
            raise ValueError("outputs that are not one for each sample")
        self._held = outputs, take(self._targets, rows), copy.deepcopy(self._experiment)

    def held(self, places: slice, seed: int = 0) -> dict[str, Value]:
        """Return the loss and the metrics of a part of the kept outputs; state and random numbers begin anew."""
        assert self._held is not None
        outputs, targets, experiment = self._held
        keras.utils.set_random_seed(seed)
        with no_gpu():
            part = tf.nest.map_structure(lambda leaf: leaf[places], outputs)
            return self._values(copy.deepcopy(experiment), part, take(targets, places))
