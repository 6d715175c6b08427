"""One Keras model trained alone on TensorFlow: the same loop, batches and numbers as `TorchSolo`.

An epoch is one call of a `tf.function` that loops on the device: a Python call for each batch would cost more than a
small model's step.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.experiment import Arrays, Experiment, Splits, num_samples, take
from raygpu.planning.batches import EVALUATION_BATCH, batch_bounds, epoch_order, evaluation_bounds
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import EpochResult, Trial
from raygpu.training import base
from raygpu.training.base import Settings, Training
from raygpu.training.data.columns import columns_of, order_of_reading
from raygpu.training.folds import Data, splits_of
from raygpu.training.hyperparameters import READ_BY_RAYGPU, OptimizerSettings
from raygpu.training.keras.data import data_part, tensors
from raygpu.training.keras.kept_layers import name_after, require_new
from raygpu.training.keras.keras_private_api import carried, global_seed_generator, set_global_seed_generator
from raygpu.training.keras.optimizers import make_optimizer, takes_no_step
from raygpu.training.keras.quiet_import import keras, tf
from raygpu.training.keras.random_states import random_states
from raygpu.training.keras.reduction import Loss, value_parts
from raygpu.training.keras_global_state import POLICY, store, stored
from raygpu.training.own_copy import own_copy

WEIGHTS = "model.weights.h5"
OPTIMIZER = "optimizer.npz"
MIXED = {"bf16": "mixed_bfloat16", "fp16": "mixed_float16"}
"""Keras' policies of mixed precision."""
PROBABILITIES = {"Softmax": tf.nn.softmax, "Sigmoid": tf.sigmoid}
"""Operators of which losses of Keras take the inputs, the logits, in the place of the outputs."""
CALL_S = 0.02
"""Minimum duration of a timed call, in seconds: long enough to hide the cost of a call from Python."""


class KerasSolo(Training):
    """Training of one trial of a `KerasExperiment`, on the GPU that this process sees, else the CPU.

    `augment`, `loss` and `metrics` are traced once: random numbers of `keras.random` change from batch to batch and are
    seeded for each epoch; those of NumPy or `random` would be drawn once and stay: a first step refuses them.

    optimizer_settings: by default those of the trial's hyper-parameters.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Data,
        trial: Trial,
        settings: Settings,
        *,
        optimizer_settings: OptimizerSettings | None = None,
    ) -> None:
        if settings.epochs is None:
            raise ValueError("epochs: not given; a KerasExperiment trains for a fixed number of epochs")
        splits = splits_of(splits, trial)
        self.experiment = experiment
        self.hp = Hyperparameters(trial.hyperparameters)
        self.seed = trial.seed
        self.epochs = settings.epochs
        self.num_train, self.samples_per_epoch = splits.num_train, splits.samples_per_epoch
        self.num_validation = num_samples(splits.validation_targets)
        self.optimizer_settings = optimizer_settings or OptimizerSettings.of(trial.hyperparameters)
        bounds = list(
            batch_bounds(self.samples_per_epoch, min(self.optimizer_settings.batch_size, self.samples_per_epoch))
        )
        self.bounds = np.asarray(bounds, np.int32)
        configure(settings)
        self.train_data = data_part(splits.train_inputs, splits.train_targets)
        self.validation_data = data_part(splits.validation_inputs, splits.validation_targets)
        self._columns = columns_of(splits.train_inputs)
        """Inputs that are read while they are trained on."""
        model = initial_model(experiment, self.hp, trial.seed, splits.train_inputs, settings.precision)
        require_new(model, experiment)
        self.model = self._on_devices(model)
        self.seed_generator = global_seed_generator()
        """Generator of `keras.random` while this training is traced, in any thread; made after those of the model."""
        self.scales_loss = settings.scales_loss
        self.optimizer = make_optimizer(self.optimizer_settings, scales_loss=self.scales_loss)
        self.optimizer.build(self.model.trainable_variables)
        self.epoch = 0
        self._train_steps: Any = None
        self._evaluate_rows: Any = tf.function(self._evaluate_batch)
        self.random_states: list[Any] = []
        """States of the generators that training and evaluation draw from; empty before they are traced."""
        self.stepped: list[Any] | None = None
        """Variables with a gradient, which steps change; None before a step is traced."""

    def _on_devices(self, model: keras.Model) -> keras.Model:
        return model

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate the next epoch; return None after the last one."""
        if self.epoch >= self.epochs:
            return None
        self.trace()  # before the clock starts: it is no part of the throughput
        self.epoch += 1
        self._reseed()
        self.train_data.take_waited()  # of steps that were timed
        started = time.perf_counter()
        train_loss = self._train()
        train_s, waited_s = time.perf_counter() - started, self.train_data.take_waited()
        metrics = {"train/loss": train_loss}
        metrics |= {f"validation/{name}": value for name, value in self.evaluate().items()}
        validate_s = time.perf_counter() - started - train_s  # the metrics are numbers: the device has been waited for
        return EpochResult(self.epoch, metrics, self.samples_per_epoch, train_s, validate_s, waited_s)

    def trace(self) -> None:
        """Trace training and evaluation, unless that is done."""
        if self._train_steps is not None:
            return
        set_global_seed_generator(self.seed_generator)
        rows, bounds = tf.TensorSpec([self.samples_per_epoch], tf.int64), tf.TensorSpec([None, 2], tf.int32)
        lrs = tf.TensorSpec([None], tf.float32)
        self._train_steps = tf.function(self._train_batches).get_concrete_function(rows, bounds, lrs)
        self.random_states = random_states(self._train_steps, self.traced_evaluation())

    def traced_evaluation(self) -> Any:
        """Return the evaluation of a batch, traced."""
        bounds = map(tf.constant, next(iter(evaluation_bounds(self.num_validation))))
        return self._evaluate_rows.get_concrete_function(*bounds)

    def _reseed(self) -> None:
        """Seed all random numbers of each epoch anew, so that going on needs no saved random state."""
        for place, state in enumerate(self.random_states):
            draw = np.random.default_rng([self.seed, self.epoch, place]).integers(2**20)
            state.assign(tf.constant([draw, 0], state.dtype))

    def order(self, epoch: int) -> np.ndarray:
        """Return the training samples of an epoch in their order, int64 (samples_per_epoch,)."""
        if self._columns:
            return order_of_reading(self._columns[0], epoch, self.samples_per_epoch)
        return epoch_order(self.seed, epoch, self.num_train, self.samples_per_epoch)

    def _train(self) -> float:
        """Train an epoch; return its mean loss."""
        return self._run_steps(self.epoch, len(self.bounds))

    def _run_steps(self, epoch: int, count: int) -> float:
        """Take the first `count` steps of an epoch; return their mean loss, which waits for the device."""
        order, steps = self.order(epoch), len(self.bounds)
        first_step = (epoch - 1) * steps
        settings = self.optimizer_settings.in_epoch(epoch)
        lrs = [settings.lr_at(first_step + step, steps, self.epochs) for step in range(count)]
        self.train_data.begin(epoch, (order[start:end] for start, end in self.bounds[:count]))
        try:
            total, weight, counted = self._train_steps(
                tf.constant(order), tf.constant(self.bounds[:count]), tf.constant(lrs, tf.float32)
            ).numpy()
        except tf.errors.OpError as error:
            raise self.train_data.fault(error) from error
        return float(total / (weight or 1.0)) if counted and not takes_no_step(self.optimizer) else math.nan

    def trial_steps(self) -> Iterator[int]:
        """Take steps without end, to be timed; yield the samples of each call, which takes CALL_S or an epoch.

        The steps change the model.
        """
        self.trace()
        count = 1
        while True:
            started = time.perf_counter()
            self._run_steps(1, count)
            if time.perf_counter() - started < CALL_S:
                count = min(2 * count, len(self.bounds))
            yield int(self.bounds[count - 1][1])

    def trial_evaluation(self) -> tuple[int, int]:
        """Evaluate the first batch, to be timed; return its samples, and those of a whole evaluation."""
        self.evaluate(most=EVALUATION_BATCH)
        return min(EVALUATION_BATCH, self.num_validation), self.num_validation

    def wait(self) -> None:
        """Do nothing: each call of `trial_steps` has waited for the device."""

    def _train_batches(self, order: Any, bounds: Any, lrs: Any) -> Any:
        """Take one optimizer step for each batch; return numerator and denominator of the loss, and the number of
        batches in it: in fp16 those with a finite loss, as the steps of the others are left out. Traced.

        order: the samples, int64 (samples_per_epoch,). bounds: start and end of each batch, int32 (steps, 2).
        lrs: a learning rate for each step, float32 (steps,).
        """
        parts = tf.zeros([3], tf.float64)
        for step in tf.range(tf.shape(bounds)[0]):
            start, end = bounds[step, 0], bounds[step, 1]
            loss = self._step(order[start:end], lrs[step])
            terms = tf.concat([loss.parts(tf.cast(end - start, tf.float64)), [1.0]], 0)
            parts += tf.where(tf.reduce_all(tf.math.is_finite(terms)), terms, 0.0) if self.scales_loss else terms
        return parts

    def _step(self, rows: Any, lr: Any) -> Loss:
        """Take one optimizer step on these samples; return their loss. Traced."""
        inputs, targets = self.train_data.chosen(rows)
        variables = self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, targets)
            objective = self.optimizer.scale_loss(loss.objective())
        all_pairs = zip(tape.gradient(objective, variables), variables, strict=True)
        # Embeddings give sparse gradients, which neither the norm nor a decay can use.
        pairs = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in all_pairs if gradient is not None]
        gradients, used = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
        self.stepped = used
        self.optimizer.learning_rate = lr
        self.optimizer.apply(gradients, used)
        return loss

    def loss(self, inputs: Any, targets: Any) -> Loss:
        """Return the loss of these samples in training, with the model's penalties; traced."""
        outputs = in_float32(self.model(self.experiment.augment(inputs, self.hp), training=True))
        value = self.experiment.loss(outputs, targets)
        return Loss.of(value, self.model.losses, in_float32)  # of regularizers, and what layers gave to add_loss()

    def evaluate(self, most: int | None = None) -> dict[str, float]:
        """Return means over the validation data, or over its first `most` samples, taken in batches.

        `Mean` and `Sum` add up exactly over batches; a plain number counts by the size of its batch.
        """
        sums: dict[str, Any] = {}
        count = min(self.num_validation, most or self.num_validation)
        bounds = evaluation_bounds(count)
        self.validation_data.begin(1, (np.arange(*each) for each in bounds))
        try:
            for start, end in bounds:
                for name, value in self._evaluate_rows(tf.constant(start), tf.constant(end)).items():
                    sums[name] = sums[name] + value if name in sums else value
        except tf.errors.OpError as error:
            raise self.validation_data.fault(error) from error
        totals = {name: value.numpy() for name, value in sums.items()}
        return {name: float(total / (weight or 1.0)) for name, (total, weight) in totals.items()}

    def _evaluate_batch(self, start: Any, end: Any) -> dict[str, Any]:
        """Return loss and metrics, as numerator and denominator, of the validation samples `start` to before `end`;
        traced."""
        inputs, targets = self.validation_data.chosen(slice(start, end))
        outputs = in_float32(self.model(inputs, training=False))
        values = base.scores(self.experiment.loss(outputs, targets), self.experiment.metrics(outputs, targets))
        count = tf.cast(end - start, tf.float64)
        return {name: value_parts(value, count) for name, value in values.items()}

    def save(self, folder: Path) -> None:
        """Write `model.weights.h5`, Keras' own format, and `optimizer.npz`: the optimizer's variables and the epoch."""
        self.model.save_weights(folder / WEIGHTS)
        variables: dict[str, Any] = {
            str(place): _as_array(variable) for place, variable in enumerate(self.optimizer.variables)
        }
        np.savez(folder / OPTIMIZER, epoch=self.epoch, **variables)

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote."""
        self.model.load_weights(folder / WEIGHTS)
        with np.load(folder / OPTIMIZER) as state:
            for place, variable in enumerate(self.optimizer.variables):
                variable.assign(state[str(place)])
            self.epoch = int(state["epoch"])

    def load_parameters(self, folder: Path) -> None:
        """Take over the model of a folder that `save` wrote, to evaluate it."""
        self.model.load_weights(folder / WEIGHTS)

    def close(self) -> None:
        """Free memory and graphs for the next trial of this process."""
        self.train_data.close()
        self.validation_data.close()
        del self.model, self.optimizer, self.train_data, self.validation_data
        del self._train_steps, self._evaluate_rows, self.random_states, self.stepped
        keras.utils.clear_session(free_memory=False)  # True collects too, and a collection visits every object there is
        name_after(self.experiment)
        gc.collect()  # traced functions and models refer to each other


def initial_model(
    experiment: Experiment, hp: Mapping[str, Any], seed: int, inputs: Arrays, precision: str = "float32"
) -> keras.Model:
    """Make the model with initial parameters by the trial's seed. A model without shapes gets them from `inputs`."""
    _check_backend()
    keras.utils.set_random_seed(seed % 2**32)  # NumPy's seeds end there
    policy = stored(POLICY)
    if precision in MIXED:
        keras.config.set_dtype_policy(MIXED[precision])
    try:
        model = base.build_model(experiment, hp)
        if not isinstance(model, keras.Model):
            raise TypeError(f"model(hp) returned {type(model).__name__}; a keras.Model is wanted")
        if not model.built:
            model(tensors(take(inputs, slice(0, 2))), training=False)  # which may make layers, too
    finally:
        store(POLICY, policy)
    return model


def trained_model(experiment: Experiment, trial: Trial, checkpoint: Path, inputs: Arrays) -> keras.Model:
    """Load the model of a trial's checkpoint. inputs: a few samples, which give shapes to a model without."""
    model = initial_model(own_copy(experiment), Hyperparameters(trial.hyperparameters), trial.seed, inputs)
    model.load_weights(checkpoint / WEIGHTS)
    return model


def predict(experiment: Experiment, trial: Trial, checkpoint: Path, inputs: Arrays) -> tuple[str, list[np.ndarray]]:
    """Return a checkpoint's architecture as text, and its outputs on `inputs`, one array for each sample; on the
    CPU."""
    with no_gpu():
        model = trained_model(experiment, trial, checkpoint, inputs)
        outputs = model(tensors(inputs), training=False)
    lines: list[str] = []
    model.summary(line_length=100, print_fn=lambda text, **_: lines.append(text))
    if not tf.is_tensor(outputs):
        return "\n".join(lines), []
    return "\n".join(lines), list(in_float32(outputs).numpy())


def names_read(experiment: Experiment, trial: Trial, splits: Splits) -> frozenset[str]:
    """Return the hyper-parameters that shape a trial's program. Raises any exception of the experiment, on the CPU."""
    experiment, hp = own_copy(experiment), Hyperparameters(trial.hyperparameters)
    few = slice(0, 4)
    with no_gpu():
        model = initial_model(experiment, hp, trial.seed, splits.train_inputs)
        model(experiment.augment(tensors(take(splits.train_inputs, few)), hp), training=False)
    return frozenset(hp.names_read) | READ_BY_RAYGPU


def configure(settings: Settings) -> None:
    """Set TensorFlow's threads, GPU memory growth and matrix-product precision for this process."""
    tf.config.experimental.enable_tensor_float_32_execution(settings.precision == "tf32")
    # A process that trains a second trial has started TensorFlow already, with the settings of the first.
    with contextlib.suppress(RuntimeError):
        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
    with contextlib.suppress(RuntimeError):  # apart from the threads: either may be settled already
        for gpu in tf.config.list_physical_devices("GPU"):
            if tf.config.get_logical_device_configuration(gpu) is None:  # else memory is capped, and cannot grow
                tf.config.experimental.set_memory_growth(gpu, True)


@contextlib.contextmanager
def no_gpu() -> Iterator[None]:
    """Keep the driver's process off the GPUs: once TensorFlow has started on one, it holds a context there."""
    with contextlib.suppress(RuntimeError):  # has started: only what runs in here can be kept away
        tf.config.set_visible_devices([], "GPU")
    with tf.device("/CPU:0"):
        yield


def _check_backend() -> None:
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Keras runs on {keras.backend.backend()!r}, from KERAS_BACKEND or ~/.keras/keras.json; raygpu trains "
            "Keras models on TensorFlow: set KERAS_BACKEND=tensorflow"
        )


def in_float32(outputs: Any) -> Any:
    """Cast outputs of half precision to float32, with their masks and logits: a loss of 8 or 11 significant bits is too
    coarse."""

    def cast(tensor: Any) -> Any:
        """Cast one tensor; of probabilities by `tf.nn`, whose logits Keras finds by their operator, cast the logits."""
        if tensor.dtype not in (tf.bfloat16, tf.float16):
            return tensor
        operator = None if hasattr(tensor, "_keras_logits") else getattr(tensor, "op", None)  # traced ones have it
        if operator is not None and operator.type in PROBABILITIES:
            return PROBABILITIES[operator.type](tf.cast(operator.inputs[0], tf.float32))
        return tf.cast(tensor, tf.float32)

    return keras.tree.map_structure(lambda tensor: carried(cast, tensor), outputs)


def _as_array(variable: Any) -> np.ndarray:
    """Return a variable's values; those of bfloat16, which NumPy's files do not know, as float32, which is exact."""
    value = tf.convert_to_tensor(variable)
    return (tf.cast(value, tf.float32) if value.dtype == tf.bfloat16 else value).numpy()
