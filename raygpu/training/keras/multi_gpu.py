"""A Keras model on several devices of one process, by one call: Keras' former multi_gpu_model, with ratios."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from raygpu.planning.batch_shares import split_batch
from raygpu.training.keras.keras_private_api import carried, untracked
from raygpu.training.keras.quiet_import import keras, tf


def multi_gpu_model(model: keras.Model, gpus: int | Sequence[int], ratios: Sequence[float] | None = None) -> Any:
    """Return a model that splits each batch over several devices, runs `model` on each part, and joins the outputs.

        parallel = raygpu.multi_gpu_model(model, gpus=[0, 1], ratios=[3, 2])
        parallel.compile(optimizer="sgd", loss="mse")
        parallel.fit(x, y, batch_size=640)          # 384 samples on GPU 0 and 256 on GPU 1
        parallel.save("model.keras")                # the model itself, with the optimizer's state

    `save`, `save_weights`, `export` and callbacks such as ModelCheckpoint write `model`, compiled as the parallel one.
    `keras.models.load_model` loads that on any machine, without raygpu. To go on over several devices, call
    `multi_gpu_model` again and compile with the loaded model's optimizer. Weights load from either into the other.
    `clone_model` and `from_config` make a parallel model; if devices are missing, a warning names the ones that it
    uses.

    model: built or not; its weights stay where it was made, and are copied to the other devices in each step. gpus:
    indices of the GPUs, or their number; without a GPU, of TensorFlow's logical CPU devices. ratios: of the parts,
    split by largest remainder; equal by default. The loss is that of the whole batch, and so is the gradient.
    BatchNormalization normalises each part by itself, and losses that layers give to `add_loss` count once for each
    device. Raises ValueError, also for a model with a train_step, test_step or compute_loss of its own, which would not
    be called.
    """
    indices = list(range(gpus)) if isinstance(gpus, int) else list(gpus)
    shares = [1.0] * len(indices) if ratios is None else [float(ratio) for ratio in ratios]
    if not indices:
        raise ValueError(f"gpus: read {gpus!r}; one is needed at least")
    if len(shares) != len(indices):
        raise ValueError(f"ratios: read {list(shares)}, {len(shares)} numbers for {len(indices)} GPUs")
    if not all(share > 0 and np.isfinite(share) for share in shares):
        raise ValueError(f"ratios: read {list(shares)}; allowed: numbers above 0")
    for name in ("train_step", "test_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise ValueError(
                f"model: {type(model).__name__} has a {name}() of its own, which a parallel model does not call"
            )
    kind, count = _devices()
    missing = [index for index in indices if not 0 <= index < count]
    if missing:
        raise ValueError(f"gpus: read {missing[0]}; TensorFlow sees {count} {kind} device{'s' if count > 1 else ''}")
    return _Slices(model, indices, shares)


def _devices() -> tuple[str, int]:
    """Return the kind of device that a parallel model runs on, and the number of them that TensorFlow sees."""
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    return kind, len(tf.config.list_logical_devices(kind))


@keras.saving.register_keras_serializable(package="raygpu", name="ParallelModel")
class _Slices(keras.Model):
    def __init__(
        self, model: keras.Model, gpus: Sequence[int], ratios: Sequence[float], name: str | None = None
    ) -> None:
        super().__init__(name=name or f"{model.name}_on_{len(gpus)}")
        self.model = model
        self._gpus, self._ratios = list(gpus), list(ratios)
        self._places = [f"{_devices()[0]}:{index}" for index in gpus]
        self._compiled_with: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self.supports_jit = False  # XLA would have it all on one device
        self.built = model.built

    def get_config(self) -> dict[str, Any]:
        """Return the configuration of a parallel model: the model's own, and the split of batches."""
        model_config = keras.saving.serialize_keras_object(self.model)
        return {"name": self.name, "model": model_config, "gpus": list(self._gpus), "ratios": list(self._ratios)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None) -> _Slices:
        """Make a parallel model from a configuration, on those of its devices that exist."""
        model = keras.saving.deserialize_keras_object(config["model"], custom_objects=custom_objects)
        kind, count = _devices()
        pairs = zip(config["gpus"], config["ratios"], strict=True)
        there = [(index, ratio) for index, ratio in pairs if index < count] or [(0, 1.0)]
        gpus, ratios = [index for index, _ in there], [ratio for _, ratio in there]
        if gpus != list(config["gpus"]):
            warnings.warn(
                f"{config['name']} is made for devices {list(config['gpus'])}, and TensorFlow sees {count} {kind}"
                f" device{'s' if count > 1 else ''}: it runs on {gpus}",
                stacklevel=2,
            )
        return cls(model, gpus, ratios, name=config["name"])

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the model: see `keras.Model.compile`."""
        super().compile(*arguments, **options)
        self._compiled_with = arguments, options

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile the model: see `keras.Model.compile_from_config`, which skips models with a `compile` of their
        own."""
        try:
            options = keras.saving.deserialize_keras_object(config)
        except TypeError:  # Keras finds the user's own functions by names that the user has registered
            warnings.warn(f"{self.name} is not compiled: its loss or a metric is not registered", stacklevel=2)
            return
        self.compile(**options)
        if self.model.built:
            self.optimizer.build(self.trainable_variables)

    @contextmanager
    def _whole(self) -> Iterator[keras.Model]:
        """Yield the model itself, compiled inside like the parallel one and with its optimizer."""
        model = self.model
        if not self.compiled:
            yield model
            return
        before = dict(vars(model))
        try:
            arguments, options = self._compiled_with
            model.compile(*arguments, **options)
            with untracked():
                model.optimizer = self.optimizer
            yield model
        finally:
            for name in set(vars(model)) - set(before):
                del vars(model)[name]
            vars(model).update(before)

    def save(self, *arguments: Any, **options: Any) -> None:
        """Save the model itself: see `keras.Model.save`. The file needs neither raygpu nor several devices."""
        with self._whole() as model:
            model.save(*arguments, **options)

    def save_weights(self, *arguments: Any, **options: Any) -> None:
        """Save the weights of the model itself: see `keras.Model.save_weights`."""
        with self._whole() as model:
            model.save_weights(*arguments, **options)

    def load_weights(self, *arguments: Any, **options: Any) -> None:
        """Load weights that the parallel model or the model itself has saved: see `keras.Model.load_weights`."""
        with self._whole() as model:
            model.load_weights(*arguments, **options)

    def export(self, *arguments: Any, **options: Any) -> None:
        """Export the model itself: see `keras.Model.export`."""
        self.model.export(*arguments, **options)

    def build(self, *_: Any) -> None:
        """Do nothing: all weights are the model's own."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Run the model on each device's part of the inputs, and join the outputs along the first axis."""
        count = tf.shape(tf.nest.flatten(inputs)[0])[0]
        sizes = self._sizes(count)
        ends = tf.cumsum(sizes)
        outputs = []
        for place, device in enumerate(self._places):
            with tf.device(device):
                # A device without a sample takes the last one, and what comes of it is dropped: the statistics of
                # BatchNormalization over none would be no numbers.
                size, first = sizes[place], tf.minimum(ends[place] - sizes[place], count - 1)
                rows = slice(first, first + tf.maximum(size, 1))
                own_inputs = tf.nest.map_structure(lambda tensor, rows=rows: tensor[rows], inputs)
                own_outputs = self.model(own_inputs, training=training)
                outputs.append(keras.tree.map_structure(lambda tensor, size=size: _first(tensor, size), own_outputs))
        return keras.tree.map_structure(_joined, *outputs)

    def _sizes(self, count: Any) -> Any:
        sizes = tf.numpy_function(self._split, [count], tf.int32)
        return tf.ensure_shape(sizes, [len(self._places)])

    def _split(self, count: Any) -> np.ndarray:
        number = len(self._ratios)
        if count < number:  # the last batch of an epoch may be that small
            return np.asarray([place < count for place in range(number)], np.int32)
        return np.asarray(split_batch(int(count), self._ratios), np.int32)


def _first(tensor: Any, size: Any) -> Any:
    """Return the first samples of an output, with those of its mask and logits."""
    return carried(lambda each: each[:size], tensor)


def _joined(*parts: Any) -> Any:
    """Return the outputs of all parts as one, with its mask and logits."""
    return carried(lambda *each: tf.concat(each, axis=0), *parts)
