"""TensorFlow's first device as several logical ones, in one process: a training on each."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from raygpu.training.quiet_keras import tf


def split(count: int, memory_gib: float | None) -> list[Callable[[], Any]]:
    """A context for each of `count` logical devices, in which a training is made and runs.

    memory_gib: what each takes of a GPU at once, and never more; needed there. Call before TensorFlow has started.
    """
    gpus = tf.config.list_physical_devices("GPU")
    device = (gpus or tf.config.list_physical_devices("CPU"))[0]
    limit = round(1024 * memory_gib) if gpus and memory_gib is not None else None
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(count)]
    tf.config.set_logical_device_configuration(device, parts)
    return [partial(tf.device, part.name) for part in tf.config.list_logical_devices(device.device_type)[:count]]
