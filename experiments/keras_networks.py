"""The networks of `torch_networks`, in Keras. Imported inside `model()`: an experiment's module loads no framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers, ops


def pixels(mean: Sequence[float], std: Sequence[float]) -> keras.layers.Layer:
    """Pixels of 0 to 255 with mean 0 and variance 1. mean, std: of the data set, scaled to 0..1, for each channel."""
    return layers.Normalization(
        mean=[255 * value for value in mean], variance=[(255 * value) ** 2 for value in std], axis=-1
    )


def convolution(x: Any, after: int, size: int, stride: int = 1) -> Any:
    """A convolution of size x size and its BatchNorm, padded as PyTorch does: on both sides alike."""
    if size > 1:
        x = layers.ZeroPadding2D(size // 2)(x)
    x = layers.Conv2D(after, size, stride, use_bias=False)(x)
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)


def basic_block(x: Any, channels: int, stride: int) -> Any:
    inner = layers.ReLU()(convolution(x, channels, 3, stride))
    return _residual(x, convolution(inner, channels, 3), stride)


def bottleneck(x: Any, channels: int, stride: int) -> Any:
    inner = layers.ReLU()(convolution(x, channels, 1))
    inner = layers.ReLU()(convolution(inner, channels, 3, stride))
    return _residual(x, convolution(inner, 4 * channels, 1), stride)


def _residual(x: Any, inner: Any, stride: int) -> Any:
    after = inner.shape[-1]
    shortcut = x if x.shape[-1] == after and stride == 1 else convolution(x, after, 1, stride)
    return layers.ReLU()(layers.Add()([shortcut, inner]))


def resnet(x: Any, block: Any, blocks: Sequence[int], channels: int) -> Any:
    """`torch_networks.resnet` applied to x (n, h, w, 3): logits (n, 10). block: basic_block or bottleneck."""
    x = layers.ReLU()(convolution(x, channels, 3))
    for stage, count in enumerate(blocks):
        for place in range(count):
            x = block(x, channels * 2**stage, 2 if stage > 0 and place == 0 else 1)
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def crop_and_flip(images: Any, padding: int) -> Any:
    """`torch_networks.crop_and_flip` of images (n, h, w, c), by `keras.random`; float32."""
    count, (height, width) = ops.shape(images)[0], images.shape[1:3]
    padded = ops.pad(ops.cast(images, "float32"), [[0, 0], [padding, padding], [padding, padding], [0, 0]])
    top, left = (keras.random.randint((count, 1), 0, 2 * padding + 1) for _ in range(2))
    mirrored = keras.random.randint((count, 1), 0, 2)
    across = ops.arange(width)
    rows = top + ops.arange(height)
    columns = left + across + mirrored * (width - 1 - 2 * across)
    moved = ops.take_along_axis(padded, rows[:, :, None, None], axis=1)
    return ops.take_along_axis(moved, columns[:, None, :, None], axis=2)


def two_towers(num_words: int, embedding: int, filters: int, latent: int, middle: float) -> keras.Model:
    """`torch_networks.TwoTowers`: inputs `user` and `item` (batch, words) to the stars (batch,)."""
    user, item = (keras.Input((None,), dtype="int32", name=name) for name in ("user", "item"))
    one = _tower("user_tower", num_words, embedding, filters, latent)(user)
    other = _tower("item_tower", num_words, embedding, filters, latent)(item)
    joined = layers.Concatenate(name="joined")([one, other, layers.Multiply(name="product")([one, other])])
    stars = layers.Dense(1, bias_initializer=keras.initializers.Constant(middle), name="join")(joined)
    return keras.Model({"user": user, "item": item}, layers.Reshape((), name="stars")(stars))


def _tower(name: str, num_words: int, embedding: int, filters: int, latent: int) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(num_words, embedding, embeddings_initializer="random_normal"),
            layers.Conv1D(filters, 5, padding="same", activation="tanh"),
            layers.GlobalMaxPooling1D(),
            layers.Dense(latent, activation="relu"),
        ],
        name=name,
    )
