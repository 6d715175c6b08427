"""Logical devices: TensorFlow's first device split within one process, for a training on each part."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from raygpu.training.keras.quiet_import import tf


def make_logical_devices(count: int, memory_gib: float | None) -> list[Callable[[], Any]]:
    """Split the first device into `count` logical ones; return a context for each, in which a training is made and
    runs.

    memory_gib: memory that each reserves on a GPU at once and cannot exceed; required there. Once TensorFlow has
    started, a process keeps the devices of its start.
    """
    gpus = tf.config.list_physical_devices("GPU")
    device = (gpus or tf.config.list_physical_devices("CPU"))[0]
    limit = round(1024 * memory_gib) if gpus and memory_gib is not None else None
    parts = [tf.config.LogicalDeviceConfiguration(memory_limit=limit) for _ in range(count)]
    with contextlib.suppress(RuntimeError):
        tf.config.set_logical_device_configuration(device, parts)
    return [partial(tf.device, part.name) for part in tf.config.list_logical_devices(device.device_type)[:count]]


def on_gpu() -> bool:
    """Return whether TensorFlow trains on a GPU here."""
    return bool(tf.config.list_physical_devices("GPU"))


def cap(limit_mib: int) -> None:
    """Limit the first GPU to one logical device of this much memory; without effect once TensorFlow has started."""
    with contextlib.suppress(RuntimeError):
        gpu = tf.config.list_physical_devices("GPU")[0]
        tf.config.set_logical_device_configuration(gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=limit_mib)])
