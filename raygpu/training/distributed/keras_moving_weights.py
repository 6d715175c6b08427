"""Weights that a Keras model's forward pass in training changes, kept alike on all devices."""

from __future__ import annotations

from typing import Any

from raygpu.training.distributed.keras_loss_check import batch_norms
from raygpu.training.keras.keras_private_api import written_handles
from raygpu.training.keras.quiet_import import tf


class MovingWeights:
    """Keeps alike, on all devices, the weights that a forward pass writes to, as a moving centre: each step begins with
    the first device's.

    Statistics of BatchNormalization, which training does not read, are each device's own: the first one evaluates and
    saves.
    """

    def __init__(self, strategy: tf.distribute.Strategy, model: Any, traced: Any) -> None:
        """traced: the ConcreteFunction of a part's gradient, on all devices of this process."""
        self._strategy = strategy
        written, norms = written_handles(traced), {id(each) for layer in batch_norms(model) for each in layer.weights}
        self.weights = [each for each in model.weights if id(each) not in norms and self._handles(each) & written]
        """Weights that a forward pass writes to, on all ranks the same."""
        self._share: Any = tf.function(lambda: strategy.run(self._take_first))

    def _handles(self, weight: Any) -> set[int]:
        """Return the ids of the handles of a weight's copies on the devices of this process."""
        return {id(copy.handle) for copy in self._strategy.experimental_local_results(weight.value)}

    def begin_step(self) -> None:
        """Copy the first device's values to all devices. All processes call it."""
        if self.weights:
            self._share()

    def _take_first(self) -> None:
        """Sum the first device's values and zeros of the others; traced."""
        context = tf.distribute.get_replica_context()
        is_first = tf.get_static_value(context.replica_id_in_sync_group) == 0
        for weight in self.weights:
            value = _summable(tf.convert_to_tensor(weight))
            own = tf.identity(value) if is_first else tf.zeros_like(value)
            weight.assign(tf.cast(context.all_reduce(tf.distribute.ReduceOp.SUM, own), weight.dtype))


def _summable(value: Any) -> Any:
    """Return a tensor of a type that devices add: int64 of whole numbers and truth values."""
    return tf.cast(value, tf.int64) if value.dtype.is_integer or value.dtype.is_bool else value
