"""One Keras model trained on several devices, each with its share of every batch: tf.distribute's mirrored strategies.

`MirroredStrategy` has the devices of one process, `MultiWorkerMirroredStrategy` those of several. Each step is a call
that computes a device's part of the gradient, weighted by its share so that the sum is the whole batch's, and a call
that sums the parts and applies them: what a device does alone ends between the two, which is where it is timed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from raygpu.experiment import Experiment, Splits
from raygpu.records.training_progress import ControlRequest
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.distributed.coordinator import LocalBatch, Norm, RankReport
from raygpu.training.distributed.keras_devices import KerasRanks, require_alone, summed_over_devices
from raygpu.training.distributed.keras_loss_check import adds_losses, batch_norms
from raygpu.training.distributed.keras_moving_weights import MovingWeights
from raygpu.training.distributed.keras_samples import SamplesOnDevices, SamplesRead, Span
from raygpu.training.distributed.parallel_training import ParallelTraining
from raygpu.training.distributed.ranks import ParallelSettings
from raygpu.training.keras.data import ReadData
from raygpu.training.keras.keras_private_api import set_global_seed_generator
from raygpu.training.keras.optimizers import takes_no_step
from raygpu.training.keras.quiet_import import tf
from raygpu.training.keras.random_states import random_states
from raygpu.training.keras.reduction import PartGradient
from raygpu.training.keras.solo import WEIGHTS, KerasSolo
from raygpu.training.own_copy import own_copy

MIXED_LOSSES = (
    "layers add to the loss, by add_loss() or activity_regularizer, and layers wait for the other devices within the"
    " forward pass, as BatchNormalization(synchronized=True): of several devices in one process, each would get the"
    " others' penalties; leave devices_per_worker out and take more workers, each a process with one device"
)
PROGRESS = "parallel.json"
"""File, beside those of `KerasSolo`, with the state of a training within an epoch."""


class KerasParallel(ParallelTraining):
    """Training of one trial of a `KerasExperiment` on several devices; of a copy of it, as each trial has."""

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        trial: Trial,
        settings: Settings,
        parallel: ParallelSettings,
        ranks: KerasRanks,
        *,
        request: Callable[[], ControlRequest] = lambda: "",
    ) -> None:
        self._strategy = ranks.strategy
        with self._strategy.scope():
            self.solo = solo = KerasSolo(
                own_copy(experiment), splits, trial, settings, optimizer_settings=parallel.optimizer_settings
            )
        super().__init__(parallel, ranks, request, solo.optimizer_settings, solo.samples_per_epoch, solo.epochs)
        self._note_batch_norm()
        self._note_larger_parts()
        self._data = self._samples()
        self._layout = PartGradient([], "scalar")
        """Layout of a part's gradient, known once `_compute` is traced."""
        self._compute_step: Any = tf.function(self._compute_all, reduce_retracing=True)
        self._add_parts: Any = tf.function(self._add_all)
        self._apply_step: Any = tf.function(self._apply_all)
        self._order = np.empty(0, np.int64)
        """Samples of the epoch."""
        self._split: list[list[LocalBatch]] = []
        """The split of the epoch's first and last batch as `_data` have it; empty to have them begin anew."""
        self._random: list[list[Any]] = []
        """States of random generators, by device of this process; those of the evaluation are the first device's."""
        self._in_forward: set[int] = set()
        """Devices of this process whose forward pass is being traced: one, unless layers wait for other devices."""
        self._mixed = False
        """Whether there were several at once."""
        self._moving: MovingWeights | None = None
        self._begin_losses()
        self._since = _Since(ranks.local)
        self._trace()

    def _note_batch_norm(self) -> None:
        layers = [layer for layer in batch_norms(self.solo.model) if layer.trainable]  # a frozen one takes kept numbers
        if self.ranks.world > 1 and any(layer.synchronized for layer in layers):
            self._wait_in_steps("synchronized BatchNormalization")
        if layers and self.parallel.num_parts > 1:
            self.notes.append("BatchNormalization: each part of a batch is normalised by itself")
        elif self.ranks.world > 1 and not all(layer.synchronized for layer in layers):
            self.notes.append(
                "BatchNormalization: each device normalises its share by itself; synchronized=True in the model"
                " has them normalise the whole batch"
            )

    def _samples(self) -> SamplesOnDevices | SamplesRead:
        data = self.solo.train_data
        if isinstance(data, ReadData):
            return SamplesRead(data, self._by_device)
        devices = self._strategy.extended.worker_devices if self.ranks.local > 1 else [""]
        return SamplesOnDevices(data, devices, self._by_device)

    # The two calls of a step, on every device of this process

    def _trace(self) -> None:
        self._data.begin(1, self.solo.order(1), ())
        arguments = self._data.given([(0, 2)] * self.ranks.local)
        traced = self._compute_step.get_concrete_function(tf.TensorSpec([], tf.float64), *arguments)
        if self._mixed and adds_losses(self.solo.model):
            raise ValueError(MIXED_LOSSES)
        if self.ranks.world > 1:
            self._moving = MovingWeights(self._strategy, self.solo.model, traced)
        evaluation = self.solo.traced_evaluation()
        require_alone(evaluation)
        states = random_states(traced, evaluation)
        devices = sorted({state.device for state in states}, key=lambda name: (len(name), name))
        self._random = [[v for v in states if v.device == device] for device in devices]
        self._random += [[] for _ in range(self.ranks.local - len(devices))]

    def _by_device(self, values: Sequence[Any]) -> Any:
        """Distribute one value, or a structure of values, to each device of this process."""
        first = self.ranks.rank
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group - first]
        )

    def _compute_all(self, whole: Any, *given: Any) -> Any:
        """Compute each device's part of the gradient; traced.

        whole: number of samples of the batch. given: what chooses each device's samples.

        Returns for each device: numerator and denominator of its part's loss, its seconds, |g|^2 of its gradient, and
        the tensors of `PartGradient`.
        """
        return self._strategy.run(self._compute, args=(whole, *given))

    def _compute(self, whole: Any, *given: Any) -> Any:
        # Each device is traced in a thread, and what keras.random draws from is each thread's own.
        set_global_seed_generator(self.solo.seed_generator)
        began, solo = tf.timestamp(), self.solo
        place = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group) - self.ranks.rank
        with tf.control_dependencies([began]):
            inputs, targets = self._data.chosen(place, *given)
        size = tf.cast(tf.shape(tf.nest.flatten(targets)[0])[0], tf.float64)
        variables = solo.model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            self._in_forward.add(place)
            loss = solo.loss(inputs, targets)
            self._mixed |= len(self._in_forward) > 1
            self._in_forward.remove(place)
            divided = loss.divided() if self.ranks.world == self.parallel.num_parts == 1 else loss
            scaled = divided.scaled(solo.optimizer.scale_loss) if solo.scales_loss else divided
        self._layout, part = PartGradient.of(tape, scaled, variables, size / whole)
        del tape
        if self._layout.weight_has_gradient and solo.scales_loss:
            raise ValueError(
                "loss() returned a Mean whose weight has a gradient, which fp16 does not scale over devices: use bf16"
                " or float32"
            )
        square = tf.cast(self._norm(self._layout.gradients(part)), tf.float64) ** 2 * (whole / size) ** 2
        with tf.device("CPU:0"), tf.control_dependencies([tf.identity(square)]):  # the host waits for the device
            seconds = tf.timestamp() - began
        return loss.parts(size, size / whole), seconds, square, part

    def _add_all(self, gradients: Any, more: Any) -> Any:
        """Add the gradients of two parts; traced."""
        return self._strategy.run(lambda a, b: [x + y for x, y in zip(a, b, strict=True)], args=(gradients, more))

    def _apply_all(self, gradients: Any, lr: Any) -> Any:
        """Take one optimizer step with the sum of all devices' gradients; return its |g|^2. Traced."""
        self.solo.optimizer.learning_rate = lr
        return self._strategy.run(self._apply, args=(gradients,))

    def _apply(self, gradients: Any) -> Any:
        summed, used = self._layout.whole(summed_over_devices(gradients)), self._layout.variables
        square = tf.square(self._norm(summed))
        self.solo.optimizer.apply(summed, used)
        return square

    def _norm(self, gradients: Any) -> Any:
        """Return the norm of gradients of the scaled loss, of the loss itself; traced."""
        widest = tf.float64 if any(gradient.dtype == tf.float64 for gradient in gradients) else tf.float32
        norm = tf.linalg.global_norm([tf.cast(gradient, widest) for gradient in gradients])
        return norm / tf.cast(self.solo.optimizer.scale_loss(1.0), norm.dtype)

    def _arrays(self, values: Any) -> list[np.ndarray]:
        """Wait for the devices of this process, and return the array of each."""
        return [np.asarray(value) for value in self._strategy.experimental_local_results(values)]

    def _locals(self, values: Any) -> list[float]:
        """Wait for the devices of this process, and return the scalar of each."""
        return [float(value) for value in self._arrays(values)]

    # An epoch

    def _begin_epoch(self) -> None:
        self._order, self._split = self.solo.order(self.epoch + 1), []
        self._begin_losses()
        for local, states in enumerate(self._random):
            for place, state in enumerate(states):
                state.assign(tf.constant([self._draw(local, place), 0], state.dtype))

    def _begin_losses(self) -> None:
        self._loss_parts = np.zeros((self.ranks.local, 2))
        """Numerator and denominator of this epoch's loss, over the samples of each device of this process."""
        self._num_losses = np.zeros(self.ranks.local, int)
        """Number of batches, or of parts of them, in it."""

    def _draw(self, local: int, place: int) -> int:
        """Draw a seed: as in a training on one device for rank 0, one of its own for each other device."""
        rank = self.ranks.rank + local
        words = [self.solo.seed, self.epoch + 1, place]
        return int(np.random.default_rng([*words, rank] if rank else words).integers(2**20))

    def _begin_steps(self) -> None:
        split = [self.coordinator.local_batches(*self._bounds[i]) for i in (0, -1)]
        if self._split != split:  # samples that were read ahead may now be another device's
            self._split = split
            self._data.begin(self.epoch + 1, self._order, self._spans(self.step))

    def _spans(self, step: int) -> Iterator[Span]:
        """Yield the samples of each part of the epoch's batches, from a step on, of each device of this process."""
        for start, end in self._bounds[step:]:
            for spans in _spans_of(self._own(self.coordinator.local_batches(start, end))):
                yield from spans

    def _own(self, local_batches: list[LocalBatch]) -> list[LocalBatch]:
        """Return the local batches of this process' devices."""
        return local_batches[self.ranks.rank : self.ranks.rank + self.ranks.local]

    def _wait(self) -> None:
        self._num_losses += self._since.settle(self._arrays, self._loss_parts, finite_only=self.solo.scales_loss)

    def _take_step(self, start: int, end: int, lr: float) -> None:
        since = self._since
        local_batches = self.coordinator.local_batches(start, end)
        batches = self._own(local_batches)
        timed, normed = self.coordinator.measures_speed, self.coordinator.measures_noise
        if timed:
            self._wait()
        if self._moving is not None:
            self._moving.begin_step()
        gradients, parts = None, len(batches[0].sizes)
        for number, spans in enumerate(_spans_of(batches)):
            step_outputs = self._compute_step(tf.constant(end - start, tf.float64), *self._data.given(spans))
            loss_parts, seconds, squares, part = step_outputs
            gradients = part if gradients is None else self._add_parts(gradients, part)
            since.losses.append(loss_parts)
            if timed:
                since.add_seconds(self._locals(seconds), again=number > 0)
        if timed and end - start != self.parallel.global_batch:
            since.seconds.pop()
        batch_square = self._apply_step(gradients, tf.constant(lr, tf.float32))
        since.last = batch_square
        since.samples = [done + local_batch.samples for done, local_batch in zip(since.samples, batches, strict=True)]
        # Of several parts each one's norm is known and their sum's is not; only of a mean does it tell of the samples.
        if normed and parts == 1 and self._layout.kind == "scalar":
            since.norms.append((batch_square, squares, [local_batch.samples for local_batch in local_batches]))

    def _take_waited(self) -> float | None:
        return self.solo.train_data.take_waited()

    # What devices tell each other

    def _evaluate(self) -> dict[str, float]:
        return self.solo.evaluate()

    def _report(self, request: ControlRequest) -> tuple[list[RankReport], list[Norm]]:
        since, self._since = self._since, _Since(self.ranks.local)
        squares = [self._locals(squares) for _, squares, _ in since.norms]
        norms = [Norm(self._locals(batch_square)[0], shares) for batch_square, _, shares in since.norms]
        mask = [math.isfinite(norm.whole) for norm in norms]  # on all ranks alike: not of a step that fp16 left out
        squares, norms = [*compress(squares, mask)], [*compress(norms, mask)]
        stuck = takes_no_step(self.solo.optimizer)
        loss_sums = np.where(stuck | (self._num_losses == 0), math.nan, self._loss_parts[:, 0])
        reports = [
            RankReport(
                samples=since.samples[local],
                rate=self._rate(self.ranks.rank + local, [step[local] for step in since.seconds]),
                most=math.inf,
                loss_sum=float(loss_sums[local]),
                loss_weight=float(self._loss_parts[local, 1]),
                squares=tuple(each[local] for each in squares),
                request=request if local == 0 else "",
            )
            for local in range(self.ranks.local)
        ]
        return reports, norms

    # Kept

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Write the files of `KerasSolo`, and the state within an epoch, at once; return a function that does nothing.

        Rank 0 writes, and all ranks call it.
        """
        random = [[state.numpy().tolist() for state in states] for states in self._random]
        rank_states = self.ranks.gather(list(zip(random, self._loss_parts.tolist(), strict=True)))
        if self.ranks.rank:
            return lambda: None
        self.solo.epoch = self.epoch
        self.solo.save(folder)
        loss_sum, loss_weight = np.sum([parts for _, parts in rank_states], axis=0).tolist()
        state = self._state() | {"random": [states for states, _ in rank_states]}
        state |= {"loss_sum": loss_sum, "loss_weight": loss_weight}
        (folder / PROGRESS).write_text(json.dumps(state))
        return lambda: None

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote; with another number of ranks, random numbers are drawn anew."""
        state = json.loads((folder / PROGRESS).read_text())
        self._set_state(state)
        self.solo.load(folder)
        if self.step:
            self._begin_epoch()
            self._num_losses += 1  # of steps before the checkpoint, after which none may follow
            if not self.ranks.rank:
                done = self._bounds[self.step - 1][1]
                self._loss_parts[0] = state["loss_sum"], state.get("loss_weight", done)
            if len(state["random"]) == self.ranks.world:  # else drawn anew: no rank is what it was
                self._set_random(state["random"])

    def _set_random(self, random: list[list[list[int]]]) -> None:
        for local, states in enumerate(self._random):
            for state, value in zip(states, random[self.ranks.rank + local], strict=True):
                state.assign(tf.constant(value, state.dtype))

    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start."""
        self.solo.model.load_weights(folder / WEIGHTS)

    def close(self) -> None:
        """Free memory and graphs."""
        del self._compute_step, self._add_parts, self._apply_step, self._random, self._layout, self._data
        self._moving = None
        self.solo.close()


def _spans_of(own: list[LocalBatch]) -> Iterator[tuple[Span, ...]]:
    """Return the samples of each part of a batch, by device. own: local batches of the devices."""
    return zip(*(local_batch.places() for local_batch in own), strict=True)


@dataclass(slots=True)
class _Since:
    """Work of this process' devices since the last exchange."""

    local: int
    samples: list[int] = field(init=False)
    losses: list[Any] = field(default_factory=list)
    """Numerator and denominator of the loss, by device, of each part of a step that has not been waited for."""
    seconds: list[list[float]] = field(default_factory=list)
    """Seconds of each step that was timed, by device."""
    norms: list[tuple[Any, Any, list[int]]] = field(default_factory=list)
    """|g|^2 of the whole and of each device's part, and ranks' shares, of each step measured for the noise scale."""
    last: Any = None
    """Result of the last step; the step has ended once this can be read."""

    def __post_init__(self) -> None:
        self.samples = [0] * self.local

    def add_seconds(self, seconds: list[float], *, again: bool) -> None:
        """Add the seconds of a step, by device. again: whether they are of the same step's next part."""
        if again:
            self.seconds[-1] = [a + b for a, b in zip(self.seconds[-1], seconds, strict=True)]
        else:
            self.seconds.append(seconds)

    def settle(
        self, read: Callable[[Any], list[np.ndarray]], loss_parts: np.ndarray, *, finite_only: bool
    ) -> np.ndarray:
        """Wait for all steps, and add their losses to the devices' numerators and denominators; return their numbers.

        finite_only: whether to leave out losses that are not finite, as those of steps that fp16 leaves out.
        """
        added = np.zeros(len(loss_parts), int)
        for losses in self.losses:
            for local, parts in enumerate(read(losses)):
                if not finite_only or np.isfinite(parts).all():
                    loss_parts[local] += parts
                    added[local] += 1
        self.losses.clear()
        if self.last is not None:
            read(self.last)
        return added
