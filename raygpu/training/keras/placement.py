"""One Keras model with its parts on several devices: TensorFlow copies values between them where operations meet.

A part is a layer, by its path in the model, as `item_tower/dense`. What a placement does not name is on device 0, and a
layer inside a named one goes with it. TensorFlow by itself runs the gradient of a layer on another device, and its
optimizer step on device 0, wherever the variables are: here both run on the layer's device. Where there are fewer GPUs
than devices, logical devices share one GPU or the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from raygpu.experiment import Experiment, Splits
from raygpu.planning.model_placements import PlacementTurn
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.keras.keras_private_api import move_variable, names_from_the_start
from raygpu.training.keras.logical_devices import make_logical_devices
from raygpu.training.keras.placement_profile import profiled_steps
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.solo import KerasSolo, initial_model, no_gpu
from raygpu.training.memory_usage import GIB

WARM_UP_STEPS = 10
NUM_PROFILED = 5
"""Number of steps under the profiler."""
SPARE = 0.9
"""Part of a GPU's memory that its logical devices divide; the rest is TensorFlow's own."""


def part_names(experiment: Experiment, splits: Splits, trial: Trial) -> tuple[list[str], list[str]]:
    """Return the paths of all layers that can be placed, and of those among them that hold no other layer."""
    with no_gpu(), names_from_the_start():
        hp = Hyperparameters(trial.hyperparameters)
        layers = list(_layers(initial_model(experiment, hp, trial.seed, splits.train_inputs)))
    return [path for path, _ in layers], [path for path, layer in layers if not _inner(layer)]


def _layers(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each layer and the layer, outer ones first; inputs are no layers that compute."""
    for layer in _inner(model):
        path = f"{prefix}{layer.name}"
        yield path, layer
        yield from _layers(layer, f"{path}/")


def _inner(layer: Any) -> list[Any]:
    return [inner for inner in getattr(layer, "layers", []) if not isinstance(inner, keras.layers.InputLayer)]


def placed_devices(count: int, device_gib: float | None) -> list[str]:
    """Return the names of a placement's devices: the GPUs that this process sees or, if they are too few, logical ones.

    device_gib: memory of the GPU that logical devices divide. TensorFlow keeps the devices of a process' first call.
    """
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) >= count:
        return [f"/GPU:{index}" for index in range(count)]
    make_logical_devices(count, device_gib and SPARE * device_gib / count)
    return [f"/{'GPU' if gpus else 'CPU'}:{index}" for index in range(count)]


class KerasPlaced(KerasSolo):
    """A model with its parts on several devices, trained a turn at a time.

    parts: device of each named layer. devices: TensorFlow's names; the first holds the data and all that is not named.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        trial: Trial,
        settings: Settings,
        parts: Mapping[str, int],
        devices: list[str],
    ) -> None:
        self._parts, self.devices = parts, devices
        with tf.device(devices[0]), names_from_the_start():
            super().__init__(experiment, splits, trial, settings)
        update = self.optimizer.update_step

        def update_step(gradient: Any, variable: Any, lr: Any) -> None:
            """Update a tf.Variable on its own device."""
            with tf.device(variable.device):
                update(gradient, variable, lr)

        self.optimizer.update_step = update_step

    def _on_devices(self, model: keras.Model) -> keras.Model:
        """Move each placed layer's variables to its device, and its call, with the gradient, too."""
        for path, layer in _layers(model):  # a layer comes after the one around it, so its own device is the last word
            if path in self._parts:
                device = self.devices[self._parts[path]]
                for variable in layer.variables:
                    move_variable(variable, device)
                layer.call = _called_on(device, layer.call)
        return model

    def turn(self, *, profiled: bool) -> PlacementTurn:
        """Warm up, train an epoch, and return what it took; with a profile of some more steps, if asked for."""
        self._reset_peaks()
        self.trace()
        self.epoch = 1
        self._reseed()
        self._run_steps(1, min(WARM_UP_STEPS, len(self.bounds)))
        self._reseed()
        started = time.perf_counter()
        loss = self._train()
        turn = PlacementTurn(time.perf_counter() - started, loss, self._memory_gib())
        if not profiled:
            return turn
        rows = tf.TensorSpec([int(self.bounds[0][1])], tf.int64)
        step = tf.function(lambda rows, lr: self._step(rows, lr).objective()).get_concrete_function(
            rows, tf.TensorSpec([], tf.float32)
        )
        first = tf.constant(np.arange(int(self.bounds[0][1])), tf.int64)
        lr = tf.constant(self.optimizer_settings.lr_at(0, len(self.bounds), self.epochs), tf.float32)
        profile, trace = profiled_steps(lambda: step(first, lr).numpy(), step.graph, NUM_PROFILED)
        return replace(turn, profile=profile, trace=trace)

    def _reset_peaks(self) -> None:
        for device in self.devices if self._is_measured else ():
            tf.config.experimental.reset_memory_stats(device.strip("/"))

    @property
    def _is_measured(self) -> bool:
        return self.devices[0].startswith("/GPU")

    def _memory_gib(self) -> tuple[float, ...]:
        """Return the memory of each device in GiB: TensorFlow's peak on a GPU; on a CPU computed, of data, variables,
        their gradients and the optimizer's, without activations."""
        if self._is_measured:
            info = tf.config.experimental.get_memory_info
            return tuple(info(device.strip("/"))["peak"] / GIB for device in self.devices)
        sizes = dict.fromkeys(self.devices, 0)
        for variable in (*self.model.variables, *self.model.trainable_variables, *self.optimizer.variables):
            sizes[_name(variable.value.device)] += _num_bytes(variable.value)
        sizes[self.devices[0]] += sum(map(_num_bytes, (*self.train_data.tensors, *self.validation_data.tensors)))
        return tuple(size / GIB for size in sizes.values())


def _name(device: str) -> str:
    """Return a device's short name, `/CPU:1`, of TensorFlow's full one."""
    return "/" + device.rpartition("device:")[2].lstrip("/")


def _num_bytes(tensor: Any) -> int:
    return int(np.prod(tensor.shape)) * int(tensor.dtype.size)


def _called_on(device: str, call: Any) -> Any:
    """Return a layer's call that runs on a device, and whose gradient is computed there too."""

    def placed(*args: Any, **kwargs: Any) -> Any:
        """Call the layer on the device."""
        tensors = [tensor for tensor in tf.nest.flatten((args, kwargs)) if tf.is_tensor(tensor)]

        @tf.custom_gradient
        def on_device(*values: Any) -> Any:
            """Call the layer with these tensors in place of those that were given."""
            replacements = iter(values)
            own_args, own_kwargs = tf.nest.map_structure(
                lambda each: next(replacements) if tf.is_tensor(each) else each, (args, kwargs)
            )
            with tf.device(device), tf.GradientTape(persistent=True) as tape:
                tape.watch([value for value in values if value.dtype.is_floating])
                outputs = call(*own_args, **own_kwargs)

            def gradient(*upstream: Any, variables: Any = None) -> Any:
                """Return the gradients of the tensors and, of a layer that has variables, of these."""
                layer_variables = variables or []
                with tf.device(device):
                    targets = tf.nest.flatten(outputs)
                    gradients = tape.gradient(targets, [*values, *layer_variables], output_gradients=list(upstream))
                    dense = [None if each is None else tf.convert_to_tensor(each) for each in gradients]
                return (dense[: len(values)], dense[len(values) :]) if layer_variables else dense

            return outputs, gradient

        return on_device(*tensors)

    return placed
