"""A network for data-parallel benchmarks, in torch and in Keras: much to compute and little to send."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from experiments.digits import Digits, digits
from raygpu import KerasExperiment, Splits, TorchExperiment


class Convolutions(Digits, TorchExperiment):
    """`layers` convolutions of `channels` maps, without BatchNorm, whose statistics are a rank's own on a CPU."""

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        channels = hp["channels"]
        layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
        for before in [1, *[channels] * (hp["layers"] - 1)]:
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


class KerasConvolutions(Digits, KerasExperiment):
    """The same in Keras."""

    def model(self, hp: Mapping[str, Any]) -> Any:
        import keras

        layers = keras.layers
        inner = [
            layers.Conv2D(hp["channels"], 3, padding="same", activation="relu", data_format="channels_last")
            for _ in range(hp["layers"])
        ]
        body = [layers.Reshape((8, 8, 1)), *inner, layers.AveragePooling2D(4), layers.Flatten(), layers.Dense(10)]
        return keras.Sequential([keras.Input((64,)), *body])


class Long(Convolutions):
    """With an epoch of 46,000 samples. `samples_per_s`: of a device that is simulated by waiting; 0 for none."""

    def data(self) -> Splits:
        return repeated(32)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        if hp["samples_per_s"]:
            time.sleep(len(inputs) / hp["samples_per_s"])
        return inputs


class KerasLong(KerasConvolutions):
    """The same in Keras."""

    def data(self) -> Splits:
        return repeated(32)

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import tensorflow as tf

        speed = hp["samples_per_s"]
        if not speed:
            return inputs
        waited = tf.numpy_function(lambda count: time.sleep(count / speed), [tf.shape(inputs)[0]], [])
        with tf.control_dependencies([waited]):
            return tf.identity(inputs)


class Mortal(Digits, TorchExperiment):
    """Its process of rank `rank` is killed at step `step` of its life, once. Random state counts: it has dropout."""

    steps = 0

    def model(self, hp: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))

    def augment(self, inputs: Any, hp: Mapping[str, Any]) -> Any:
        import torch.distributed as dist

        self.steps += 1
        is_meant = dist.is_initialized() and dist.get_rank() == hp["rank"] and self.steps == hp["step"]
        if hp["mark"] and is_meant and not Path(hp["mark"]).exists():
            Path(hp["mark"]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return inputs


def repeated(times: int) -> Splits:
    """Digits, so many times over: for measuring speed, where an epoch has to have many large batches."""
    whole = digits()
    inputs, targets = np.asarray(whole.train_inputs), np.asarray(whole.train_targets)
    return Splits(
        np.tile(inputs, (times, 1)), np.tile(targets, times), whole.validation_inputs, whole.validation_targets
    )
