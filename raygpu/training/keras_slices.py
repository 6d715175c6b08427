"""A Keras model over several devices of one process, by one call: what Keras' multi_gpu_model was, with ratios."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from raygpu.batching import split
from raygpu.training.quiet_keras import keras, tf


def multi_gpu_model(model: keras.Model, gpus: int | Sequence[int], ratios: Sequence[float] | None = None) -> Any:
    """A model that takes each batch apart, runs `model` on a part on each device, and puts the outputs together.

        parallel = raygpu.multi_gpu_model(model, gpus=[0, 1], ratios=[3, 2])
        parallel.compile(optimizer="sgd", loss="mse")
        parallel.fit(x, y, batch_size=640)          # 384 samples on GPU 0 and 256 on GPU 1
        model.save("model.keras")                   # the weights are the model's own

    model: built or not; its weights stay where it was made, and are copied to the other devices in each step.
    gpus: their indices, or how many. Where TensorFlow sees no GPU, its logical CPU devices. ratios: of their parts,
    split by largest remainder; equal by default. The loss is that of the whole batch, and so is the gradient.
    BatchNormalization normalises each part by itself, and what layers give to `add_loss` counts once for each device.
    Raises ValueError.
    """
    indices = list(range(gpus)) if isinstance(gpus, int) else list(gpus)
    shares = [1.0] * len(indices) if ratios is None else [float(ratio) for ratio in ratios]
    if not indices:
        raise ValueError(f"gpus: read {gpus!r}; one is needed at least")
    if len(shares) != len(indices):
        raise ValueError(f"ratios: read {list(shares)}, {len(shares)} numbers for {len(indices)} GPUs")
    if not all(share > 0 and np.isfinite(share) for share in shares):
        raise ValueError(f"ratios: read {list(shares)}; allowed: numbers above 0")
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    found = len(tf.config.list_logical_devices(kind))
    missing = [index for index in indices if not 0 <= index < found]
    if missing:
        raise ValueError(f"gpus: read {missing[0]}; TensorFlow sees {found} {kind} device{'s' if found > 1 else ''}")
    return _Slices(model, [f"{kind}:{index}" for index in indices], shares)


class _Slices(keras.Model):
    def __init__(self, model: keras.Model, devices: Sequence[str], ratios: Sequence[float]) -> None:
        super().__init__(name=f"{model.name}_on_{len(devices)}")
        self.model = model
        self._devices, self._ratios = list(devices), list(ratios)
        self.supports_jit = False  # XLA would have it all on one device

    def build(self, *_: Any) -> None:
        """The model's own weights are all there are."""

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        count = tf.shape(tf.nest.flatten(inputs)[0])[0]
        sizes = self._sizes(count)
        ends = tf.cumsum(sizes)
        outputs = []
        for place, device in enumerate(self._devices):
            with tf.device(device):
                # A device without a sample takes the last one, and what comes of it is dropped: the statistics of
                # BatchNormalization over none would be no numbers.
                size, first = sizes[place], tf.minimum(ends[place] - sizes[place], count - 1)
                rows = slice(first, first + tf.maximum(size, 1))
                own = tf.nest.map_structure(lambda tensor, rows=rows: tensor[rows], inputs)
                found = self.model(own, training=training)
                outputs.append(tf.nest.map_structure(lambda tensor, size=size: tensor[:size], found))
        return tf.nest.map_structure(lambda *each: tf.concat(each, axis=0), *outputs)

    def _sizes(self, count: Any) -> Any:
        sizes = tf.numpy_function(self._split, [count], tf.int32)
        return tf.ensure_shape(sizes, [len(self._devices)])

    def _split(self, count: Any) -> np.ndarray:
        number = len(self._ratios)
        if count < number:  # the last batch of an epoch may be that small
            return np.asarray([place < count for place in range(number)], np.int32)
        return np.asarray(split(int(count), self._ratios), np.int32)
