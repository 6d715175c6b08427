"""Evaluate a Keras experiment's loss on chosen samples, before it is trained in parts: see `loss_check`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from raygpu.experiment import Arrays, Experiment, Splits, num_samples, take
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.data.columns import columns_of
from raygpu.training.distributed.loss_check import (
    ADD_LOSS,
    DOUBLE,
    HALF,
    OUTPUT_STEPS,
    SINGLE,
    PartValues,
    Value,
    fit_shares,
    loss_and_metrics,
    try_values,
)
from raygpu.training.distributed.sample_dependence import MIXED, collated_with_others, depends_on_others
from raygpu.training.keras.data import ReadData, tensors
from raygpu.training.keras.keras_private_api import all_layers
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.random_outputs import random_outputs
from raygpu.training.keras.random_states import RANDOM_STATE
from raygpu.training.keras.reduction import Loss, PartGradient
from raygpu.training.keras.solo import in_float32, initial_model, no_gpu
from raygpu.training.keras_global_state import POLICY, store, stored
from raygpu.training.own_copy import own_copy

DROPOUTS = (keras.layers.Dropout, keras.layers.AlphaDropout, keras.layers.GaussianDropout)
"""Layers that leave out values by chance, at a rate."""


class KerasLossEvaluator:
    """An untrained model on the CPU, in float64 if its code takes that.

    with_metrics: whether metrics are evaluated too; else it is the loss of a training, with what layers add to it.
    """

    gradient_causes = "a layer that looks at the whole batch while it trains, or a gradient by tf.custom_gradient"

    def __init__(
        self, experiment: Experiment, hp: Mapping[str, Any], inputs: Arrays, targets: Arrays, *, with_metrics: bool
    ) -> None:
        self._experiment, self.with_metrics = experiment, with_metrics
        self._hp, self._inputs, self._targets = hp, inputs, targets
        self.rounding = DOUBLE
        self._held: tuple[Any, Arrays, Any] | None = None
        self._random = False
        before = keras.config.floatx(), stored(POLICY)
        try:
            self._prepare("float64", "float64")
            try_values(self, 2, num_samples(targets))
        except Exception:  # noqa: BLE001 - code that names float32; what else it raises, it raises again
            self.rounding = SINGLE
            self._prepare(*before)
        finally:
            self._set_types(*before)

    def _set_types(self, floatx: str, policy: Any) -> None:
        keras.config.set_floatx(floatx)
        if policy is None:
            store(POLICY, None)
        else:
            keras.config.set_dtype_policy(policy)

    def _prepare(self, floatx: str, policy: Any) -> None:
        self._set_types(floatx, policy)
        with no_gpu():
            self._model = initial_model(self._experiment, Hyperparameters.of(self._hp), 0, self._inputs)

    def _outputs(self, rows: np.ndarray) -> Any:
        return in_float32(self._model(tensors(take(self._inputs, rows)), training=False))

    def values(self, rows: np.ndarray, *, loss_alone: bool = False) -> dict[str, Value]:
        """Return the loss and the metrics of these samples, or the loss, from a forward pass of these alone."""
        with_metrics = self.with_metrics and not loss_alone
        with no_gpu():
            targets = tensors(take(self._targets, rows))
            values = loss_and_metrics(self._experiment, self._outputs(rows), targets, with_metrics=with_metrics)
            if self._model.losses and not self.with_metrics:
                values[ADD_LOSS] = Value.of(sum(float(each) for each in self._model.losses))
        return values

    def values_without_noise(self, rows: np.ndarray) -> None:
        """Return None: Keras' random numbers cannot be replaced."""

    def hold(self, rows: np.ndarray) -> None:
        """Keep the outputs of these samples for `held`. Raises ValueError if they cannot be cut into samples."""
        with no_gpu():
            outputs = self._outputs(rows)
        if not all(tuple(leaf.shape[:1]) == (len(rows),) for leaf in tf.nest.flatten(outputs)):
            raise ValueError("outputs that are not one for each sample")
        self._random = False
        self._held = outputs, take(self._targets, rows), own_copy(self._experiment)

    def draw(self, seed: int) -> None:
        """Put random numbers in the place of the kept outputs."""
        assert self._held is not None
        outputs, *others = self._held
        self._held, self._random = (random_outputs(outputs, seed), *others), True

    def held(self, places: slice, seed: int = 0) -> dict[str, Value]:
        """Return the loss and the metrics of a part of the kept outputs, of random ones the metrics alone; state and
        random numbers begin anew."""
        assert self._held is not None
        outputs, targets, experiment = self._held
        keras.utils.set_random_seed(seed)
        with no_gpu():
            part = tf.nest.map_structure(lambda leaf: leaf[places], outputs)
            some, own = tensors(take(targets, places)), own_copy(experiment)
            values = loss_and_metrics(own, part, some, with_loss=not self._random, with_metrics=self.with_metrics)
        return {ADD_LOSS: Value.of(math.nan), **values}  # which outputs do not tell

    def fitted(self, rows: np.ndarray) -> Iterator[PartValues]:
        """Yield functions that return values of a part of these samples, for outputs that fit some of them ever better.
        Raises any exception of the experiment."""
        self.hold(rows)
        assert self._held is not None
        outputs, *others = self._held
        shares, scales = fit_shares(len(rows)), None
        for length in OUTPUT_STEPS:
            gradients = self._gradients_of_outputs(outputs, *others)
            scales = [_scales(each, shares) for each in gradients] if scales is None else scales
            leaves = zip(tf.nest.flatten(outputs), gradients, scales, strict=True)
            moved = [leaf if each is None else leaf - length * each * scale for leaf, each, scale in leaves]
            outputs = tf.nest.pack_sequence_as(outputs, moved)
            self._held = outputs, *others
            yield self.held

    def _gradients_of_outputs(self, outputs: Any, targets: Arrays, experiment: Any) -> list[Any]:
        """Return the gradient of the loss for each tensor of these outputs; None for those without one."""
        with no_gpu(), tf.GradientTape() as tape:
            leaves = tf.nest.flatten(outputs)
            tape.watch([leaf for leaf in leaves if leaf.dtype.is_floating])
            loss = Loss.of(own_copy(experiment).loss(outputs, tensors(targets)), [], in_float32).objective()
        gradients = tape.gradient(loss, leaves)
        return [None if each is None else tf.where(tf.math.is_finite(each), each, 0) for each in gradients]

    def augments_together(self) -> bool:
        """Return whether `augment` makes a sample of others of its batch too, as one that mixes samples."""

        def augmented(rows: np.ndarray) -> list[np.ndarray]:
            """Return these samples as `augment` makes them; state and random numbers begin anew."""
            experiment, hp = own_copy(self._experiment), Hyperparameters.of(self._hp)
            keras.utils.set_random_seed(0)
            with no_gpu():
                return _arrays(experiment.augment(tensors(take(self._inputs, rows)), hp))

        has_own_augment = type(self._experiment).augment is not Experiment.augment
        return has_own_augment and depends_on_others(augmented, num_samples(self._targets))

    def collates_together(self, splits: Splits) -> bool:
        """Return whether a `collate_fn` makes a sample of others of its batch too, as one that mixes samples, or that
        fills them up while the model's outputs depend on how far."""
        columns = columns_of(splits.train_inputs)
        if not columns or columns[0].samples.reading.collate_fn is None:
            return False
        data = ReadData(splits.train_inputs, splits.train_targets)

        def collated(rows: np.ndarray) -> list[np.ndarray]:
            """Return outputs and targets of these samples."""
            with no_gpu():
                inputs, targets = data.read(rows)
                return _arrays((in_float32(self._model(inputs, training=False)), targets))

        try:
            return collated_with_others(collated, splits.num_train)
        finally:
            data.close()

    def moving_buffers(self) -> list[str]:
        """Return the paths of weights that a forward pass in training changes, without those of BatchNormalization."""
        with no_gpu():
            model = initial_model(self._experiment, Hyperparameters.of(self._hp), 0, self._inputs)
            norms = {id(weight) for layer in batch_norms(model) for weight in layer.weights}
            before = {weight.path: weight.numpy() for weight in model.weights if id(weight) not in norms}
            try:
                model(tensors(take(self._inputs, slice(0, 2))), training=True)
            except Exception:  # noqa: BLE001 - it shows in the training
                return []
        now = {weight.path: weight.numpy() for weight in model.weights}
        return [path for path, values in before.items() if not np.array_equal(values, now[path])]

    def gradient_adds_up(self) -> bool:
        """Return whether the gradient of a few samples follows from those of parts of them, as a training computes
        these; True if that cannot be tested.

        It does not if a gradient of the experiment's own changes it by more than a factor, or the model looks at the
        whole batch while it trains.
        """
        total = num_samples(self._targets)
        if total < 4:
            return True
        try:
            with no_gpu():
                model = initial_model(self._experiment, Hyperparameters.of(self._hp), 0, self._inputs)
                trained = _SteadyModel(model, self._experiment, self._inputs, self._targets)
                if depends_on_others(trained.outputs, total):
                    return False
                rows = np.arange(min(MIXED, total))
                verdicts = (trained.gradient_adds_up(rows, training=training) for training in (True, False))
                return next((each for each in verdicts if each is not None), True)
        except Exception:  # noqa: BLE001 - it shows in the training
            return True


class _SteadyModel:
    """A model without dropout and without BatchNormalization's look at a batch, which is reported separately; each call
    begins with the same state."""

    def __init__(self, model: Any, experiment: Experiment, inputs: Arrays, targets: Arrays) -> None:
        layers = all_layers(model)
        for layer in layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False  # so that it is as in an evaluation
            elif isinstance(layer, DROPOUTS):
                layer.rate = 0.0
            elif isinstance(layer, keras.layers.GaussianNoise):
                layer.stddev = 0.0
        self._model, self._experiment, self._inputs, self._targets = model, experiment, inputs, targets
        self._initial = [(variable, variable.numpy()) for variable in model.variables]
        half = any(layer.compute_dtype in ("bfloat16", "float16") for layer in layers)
        self._rounding = HALF if half else 10 * SINGLE

    def outputs(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the outputs for these samples in training."""
        return _arrays(self._outputs(rows, training=True))

    def _outputs(self, rows: np.ndarray, *, training: bool, seed: int = 0) -> Any:
        for variable, value in self._initial:
            variable.assign(value + seed if RANDOM_STATE in variable.name else value)
        keras.utils.set_random_seed(seed)
        return in_float32(self._model(tensors(take(self._inputs, rows)), training=training))

    def gradient_adds_up(self, rows: np.ndarray, *, training: bool) -> bool | None:
        """Return whether the gradient of these samples follows from those of two parts; None where it changes with the
        random numbers."""
        batch_gradient = self._gradient(rows, training=training)
        if not self._near(batch_gradient, self._gradient(rows, training=training, seed=1)):
            return None
        gradients = [self._part(part, len(rows), training=training) for part in np.split(rows, [len(rows) // 4])]
        layout = gradients[0][0]
        together = layout.whole([sum(each) for each in zip(*(part for _, part in gradients), strict=True)])
        by_variable = {id(variable): each for variable, each in zip(layout.variables, together, strict=True)}
        return self._near(batch_gradient, [by_variable.get(id(each), 0.0) for each in self._model.trainable_variables])

    def _loss(self, rows: np.ndarray, *, training: bool, seed: int = 0) -> Loss:
        experiment = own_copy(self._experiment)
        outputs = self._outputs(rows, training=training, seed=seed)
        return Loss.of(experiment.loss(outputs, tensors(take(self._targets, rows))), self._model.losses, in_float32)

    def _gradient(self, rows: np.ndarray, *, training: bool, seed: int = 0) -> list[Any]:
        """Return the gradient for each variable; 0 of those without one."""
        with tf.GradientTape() as tape:
            objective = self._loss(rows, training=training, seed=seed).objective()
        gradients = tape.gradient(objective, self._model.trainable_variables)
        return [0.0 if each is None else tf.convert_to_tensor(each) for each in gradients]

    def _part(self, rows: np.ndarray, whole: int, *, training: bool) -> tuple[PartGradient, list[Any]]:
        """Return the gradient of a part of `whole` samples, and its layout."""
        with tf.GradientTape(persistent=True) as tape:
            loss = self._loss(rows, training=training)
        return PartGradient.of(tape, loss, self._model.trainable_variables, len(rows) / whole)

    def _near(self, whole: list[Any], other: list[Any]) -> bool:
        most = self._rounding * max((float(tf.norm(each)) for each in whole), default=0.0)
        return all(float(tf.norm(one - another)) <= most for one, another in zip(whole, other, strict=True))


def batch_norms(model: Any) -> list[Any]:
    """Return a model's layers that normalise by the statistics of a batch."""
    return [layer for layer in all_layers(model) if isinstance(layer, keras.layers.BatchNormalization)]


def adds_losses(model: Any) -> bool:
    """Return whether layers have added to the loss in the last forward pass: regularizers of weights do not count."""
    return len(model.losses) > sum(weight.regularizer is not None for weight in model.trainable_weights)


def _scales(gradient: Any, shares: np.ndarray) -> Any:
    """Return the factors of the samples of a gradient (samples, ...) whose largest numbers become these shares; 0 where
    it is 0. None without a gradient."""
    if gradient is None:
        return None
    largest = np.abs(np.asarray(gradient)).reshape(len(shares), -1).max(1)
    factors = np.divide(shares, largest, out=np.zeros_like(shares), where=largest > 0)
    return tf.constant(factors.reshape(-1, *[1] * (len(gradient.shape) - 1)), gradient.dtype)


def _arrays(found: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in keras.tree.flatten(found)]
