"""The part of a user's contract that is Keras' own: the defaults of a Keras experiment."""

from __future__ import annotations

from typing import Any

from raygpu.experiment import Experiment, Mean
from raygpu.training.loss_kinds import ONE_OUTPUT


class KerasExperiment(Experiment):
    """A training problem in Keras on TensorFlow: `model(hp)` returns a Keras model, raygpu trains it.

    `augment`, `loss` and `metrics` are traced once into a TensorFlow graph: use `keras.ops` and TensorFlow, draw random
    numbers from `keras.random`, and let no Python `if` depend on a tensor. NumPy and Python code runs once, while
    tracing: numbers that it draws or counts up would be the same for each batch, and are refused. Outputs of half
    precision reach `loss` and `metrics` as float32.
    """

    framework = "keras"

    def loss(self, outputs: Any, targets: Any) -> Any:
        """Return the mean cross entropy, where the outputs have a mask, as of `Embedding(mask_zero=True)`, of what it
        keeps. outputs: logits (batch, classes). targets: class indices (batch,) or (batch, 1), integers. Raises
        ValueError for outputs of one class."""
        import keras

        if len(outputs.shape) < 2 or outputs.shape[-1] == 1:
            raise ValueError(ONE_OUTPUT)
        losses = keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)
        return _mean(losses, outputs)

    def metrics(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Return `accuracy`, 0 to 1, where the outputs have a mask, of what it keeps. outputs: logits (batch, classes).
        targets: class indices (batch,) or (batch, 1).

        A loss of the experiment's own may have one output, or targets of another shape or of a floating-point type:
        there is no accuracy then.
        """
        import keras

        labels = keras.ops.cast(targets, "int32")
        if len(labels.shape) == len(outputs.shape) and labels.shape[-1] == 1:
            labels = keras.ops.squeeze(labels, -1)
        has_classes = len(outputs.shape) == len(labels.shape) + 1 and outputs.shape[-1] != 1
        has_indices = "float" not in keras.backend.standardize_dtype(targets.dtype)
        if type(self).loss is not KerasExperiment.loss and not (has_classes and has_indices):
            return {}
        hits = keras.ops.equal(keras.ops.argmax(outputs, axis=-1), labels)
        return {"accuracy": _mean(keras.ops.cast(hits, "float32"), outputs)}


def _mean(values: Any, outputs: Any) -> Any:
    """Return the mean of the values; of those that the outputs' mask keeps, if a layer has left one of their shape."""
    import keras

    from raygpu.training.keras.keras_private_api import mask_of

    mask = mask_of(outputs)
    if mask is None or len(mask.shape) != len(values.shape):
        return keras.ops.mean(values)
    weights = keras.ops.cast(mask, values.dtype)
    return Mean(keras.ops.sum(values * weights), keras.ops.sum(weights))
