"""One torch model trained alone: the loop of process mode, and the reference for fused members."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.planning.batches import EVALUATION_BATCH, batch_bounds, num_batches
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import Settings, Training, scores
from raygpu.training.folds import Data
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.data import copied
from raygpu.training.torch.evaluation_batch import EvaluationBatch
from raygpu.training.torch.experiment import forward, look, training_loss, training_turns
from raygpu.training.torch.experiment_optimizer import AnyOptimizer, make_optimizer
from raygpu.training.torch.full_precision import metrics_of
from raygpu.training.torch.host_copy import host_copy
from raygpu.training.torch.loss_scale import LossScale
from raygpu.training.torch.models import (
    CHECKPOINT,
    cast_model,
    default_device,
    epoch_seed,
    initial_model,
    load_checkpoint,
)
from raygpu.training.torch.own_optimizer import changed_numbers
from raygpu.training.torch.parameter_average import AVERAGED, UNAVERAGED, ParameterAverage, unaveraged
from raygpu.training.torch.read_data import training_data
from raygpu.training.torch.reduction import (
    Accumulator,
    EpochLosses,
    TurnLosses,
    backward,
    clip_gradients,
    turn_metrics,
)
from raygpu.training.torch.seeding import OF_OPTIMIZER, own_draws, seed_all
from raygpu.training.torch.several_optimizers import SeveralOptimizers, TurnGradient
from raygpu.training.torch.step_gradient import StepGradient
from raygpu.training.torch.training_mode import set_training
from raygpu.training.torch.unsaved_state import unsaved

FEW = 2
"""Samples per step in the check for state that a checkpoint does not hold."""


class TorchSolo(Training):
    """Training of one trial of a `TorchExperiment`.

    device: where to train; by default the GPU that this process sees, else the CPU.
    dtype: of parameters and floating-point data; None leaves those of the model and the data.
    optimizer_settings: by default those of the trial's hyper-parameters.
    """

    evaluates_alone = True
    """Whether an evaluation may begin anew, with smaller batches: no other process takes part in it."""

    def __init__(
        self,
        experiment: Experiment,
        splits: Data,
        trial: Trial,
        settings: Settings,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        *,
        optimizer_settings: OptimizerSettings | None = None,
    ) -> None:
        if settings.epochs is None:
            raise ValueError("epochs: not given; a TorchExperiment trains for a fixed number of epochs")
        self.experiment = experiment
        self.hp = Hyperparameters(trial.hyperparameters)
        self.trial, self.seed = trial, trial.seed
        self.epochs = settings.epochs
        self.device = device or default_device()
        self.autocast = prepare_torch(settings, self.device)
        self.loss_scale = LossScale(self.device, enabled=settings.scales_loss)
        self.data = training_data(splits, self.device, dtype, [trial], settings.threads)
        self.samples_per_epoch = self.data.samples_per_epoch
        self.optimizer_settings = optimizer_settings or OptimizerSettings.of(trial.hyperparameters)
        self.batch_size = min(self.optimizer_settings.batch_size, self.samples_per_epoch)
        self.steps_per_epoch = num_batches(self.samples_per_epoch, self.batch_size)
        self.model = self._on_device(cast_model(initial_model(experiment, self.hp, trial.seed), dtype))
        self.num_steps = self.steps_per_epoch * self.epochs
        """Optimizer steps of the whole training; another number may be set before the optimizer is used."""
        self.epoch = 0
        self.notes: list[str] = []
        self._evaluation_batch = EvaluationBatch(self.notes)

    def _on_device(self, model: nn.Module) -> nn.Module:
        return model.to(self.device)

    @cached_property
    def optimizer(self) -> AnyOptimizer:
        """The optimizer; made at its first use, so that a model which is only evaluated has no state of one."""
        _ = self.average  # made first: it covers the parameters that require a gradient now
        with own_draws(self.seed, OF_OPTIMIZER):  # at whatever moment it is made
            return make_optimizer(self.experiment, self.model, self.hp, self.optimizer_settings, self.num_steps)

    @cached_property
    def average(self) -> ParameterAverage | None:
        """The moving average of the model, which is evaluated; None without `ema_decay`."""
        decay = self.optimizer_settings.ema_decay
        return None if decay is None else ParameterAverage(self.model, decay)

    def use(self, settings: OptimizerSettings) -> None:
        """Go on with these numbers of the optimizer and of the moving average."""
        self.optimizer.use(settings)
        if self.average is not None and settings.ema_decay is not None:
            self.average.use(settings.ema_decay)

    def take_step(self, lr: float) -> None:
        """Take an optimizer step by the gradients that the parameters have, and drop these. In fp16 they are unscaled
        already, and a step that overflowed is left out."""
        self.loss_scale.step(partial(self.optimizer.step, lr))
        if self.average is not None:
            self.average.update()

    def take_unfrozen(self) -> list[Any]:
        """Take in the parameters that require a gradient by now, before gradients of parts are added or clipped; return
        them."""
        unfrozen = self.optimizer.take_unfrozen()
        if unfrozen and self.average is not None:
            self.average.take_in(unfrozen)
        return unfrozen

    def take_turns(self, inputs: Any, targets: Any, gradient: TurnGradient | None = None) -> TurnLosses:
        """Take the steps of a batch that several optimizers share. gradient: by default that of one device."""
        assert isinstance(self.optimizer, SeveralOptimizers)
        with self.autocast():
            turns = training_turns(self.experiment, self.model, inputs, targets, self.hp)
        gradient = gradient or TurnGradient(self.take_unfrozen)
        losses = self.optimizer.take_turns(turns, self.autocast, self.loss_scale, gradient)
        if self.average is not None:
            self.average.update()
        return losses

    def run_epoch(self) -> EpochResult | None:
        """Train and evaluate the next epoch; return None after the last one."""
        if self.epoch >= self.epochs:
            return None
        self.epoch += 1
        # Dropout and augmentation: their own stream for each epoch, so that going on needs no saved random state.
        seed_all(epoch_seed(self.seed, self.epoch))
        self.data.take_waited()  # of steps that were timed
        started = time.perf_counter()
        metrics = self._train()
        train_s, waited_s = time.perf_counter() - started, self.data.take_waited()
        metrics |= {f"validation/{name}": value for name, value in self.evaluate().items()}
        validate_s = time.perf_counter() - started - train_s  # the metrics are numbers: the device has been waited for
        self.data.take_waited()  # of the evaluation
        return EpochResult(self.epoch, metrics, self.samples_per_epoch, train_s, validate_s, waited_s)

    def _train(self) -> dict[str, float]:
        """Train an epoch; return its mean loss, and with several optimizers that of each."""
        losses = EpochLosses(self.device, finite_only=self.loss_scale.enabled)
        for parts in self._steps(self.epoch):
            for loss, count in parts:
                losses.add(loss, count)
        loss = self.loss_scale.reported(losses.value())  # without fp16, the epoch's only wait for the device
        return {"train/loss": loss, **turn_metrics(losses.by_name())}

    def _steps(self, epoch: int, most: int | None = None) -> Iterator[list[tuple[Any, int]]]:
        """Take the optimizer steps of an epoch; yield the result of `loss`, or `TurnLosses`, and the number of samples
        of each part of a batch, which is one part unless `micro_batch_size` asks for more.

        most: steps that are taken at most.
        """
        set_training(self.model)
        settings = self.optimizer_settings.in_epoch(epoch)
        self.use(settings)
        first_step, chosen = (epoch - 1) * self.steps_per_epoch, self._chosen(epoch)[:most]
        sizes = [settings.parts_of(len(indices)) for indices in chosen]
        batches = self.data.train_parts(epoch, zip(chosen, sizes, strict=True))
        for number, each in enumerate(sizes):
            if isinstance(self.optimizer, SeveralOptimizers):
                yield [(self.take_turns(*next(batches)), sum(each))]
                continue
            parts = self._add_gradients(batches, each)
            self.take_unfrozen()
            self.loss_scale.unscale(self.optimizer.parameters)
            if settings.clip_norm is not None:
                clip_gradients(self.optimizer.parameters, settings.clip_norm)
            self.take_step(settings.lr_at(first_step + number, self.steps_per_epoch, self.epochs))
            yield parts

    def _add_gradients(self, batches: Iterator[tuple[Any, Any]], sizes: Sequence[int]) -> list[tuple[Any, int]]:
        """Give the parameters the gradient of a batch, taken in parts of these sizes; return the loss of each part."""
        if len(sizes) == 1:
            loss = self._loss(*next(batches))
            backward(self.loss_scale.scaled(loss))
            return [(loss, sizes[0])]
        gradient, losses = self._step_gradient, []
        gradient.begin(sum(sizes))
        for number, size in enumerate(sizes):
            with gradient.set_aside():
                loss = self._loss(*next(batches))
            self.take_unfrozen()
            gradient.add(self.loss_scale.scaled_part(loss), size, last=number == len(sizes) - 1)
            losses.append((loss, size))
        gradient.end()
        return losses

    def _loss(self, inputs: Any, targets: Any) -> Any:
        """Return the result of the training step on these samples."""
        with self.autocast():
            return training_loss(self.experiment, self.model, inputs, targets, self.hp)

    @cached_property
    def _step_gradient(self) -> StepGradient:
        return StepGradient(self.optimizer.parameters, self.device)

    def _chosen(self, epoch: int) -> list[torch.Tensor]:
        """Return the samples of each batch of an epoch."""
        order = self.data.order(self.trial, epoch)
        return [order[start:end] for start, end in batch_bounds(self.samples_per_epoch, self.batch_size)]

    def trial_steps(self) -> Iterator[int]:
        """Take steps without end, to be timed; yield the samples of each. The steps change the model.

        Samples that a cache keeps are in it before the first step, as in most epochs of a training.
        """
        if self.data.timed_batches is not None:
            deque(self.data.train_batches(1, self._chosen(1)[: self.data.timed_batches]), maxlen=0)
        while True:
            for parts in self._steps(1, self.data.timed_batches):
                yield sum(count for _, count in parts)

    def trial_evaluation(self) -> tuple[int, int]:
        """Evaluate the first batch, to be timed; return its samples, and those of a whole evaluation."""
        self.evaluate(most=EVALUATION_BATCH)
        return min(EVALUATION_BATCH, self.data.num_validation), self.data.num_validation

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @torch.no_grad()
    def evaluate(self, most: int | None = None) -> dict[str, float]:
        """Return means over the validation data, or over its first `most` samples, taken in batches.

        `Mean` and `Sum` add up exactly over batches; a plain number counts by the size of its batch.
        """
        self.model.eval()
        with self._evaluating():
            return self._evaluated(most)

    @property
    def evaluates_others(self) -> bool:
        """Whether other parameters are evaluated than those that train: averages of raygpu's or of the optimizer's."""
        return self.average is not None or ("optimizer" in vars(self) and self.optimizer.has_modes)

    def _evaluating(self) -> AbstractContextManager[None]:
        """Return the context in which the model has the parameters that are evaluated."""
        if self.average is not None:
            return self.average.in_place()
        return self.optimizer.evaluating() if self.evaluates_others else nullcontext()

    def _evaluated(self, most: int | None) -> dict[str, float]:
        count = min(self.data.num_validation, most or self.data.num_validation)
        return self._evaluation_batch.evaluated(count, self._means, fixed=not self.evaluates_alone)

    def _means(self, parts: Sequence[slice]) -> dict[str, float]:
        """Return means over these parts of the validation data."""
        sums: dict[str, Accumulator] = {}
        for part, (inputs, targets) in zip(parts, self.data.validation_batches(parts), strict=True):
            with self.autocast():
                outputs = forward(self.model, inputs)
                loss = self.experiment.loss(copied(outputs), copied(targets))  # it may change them
                values = scores(loss, metrics_of(self.experiment, outputs, targets, self.device))
            for name, value in values.items():
                sums.setdefault(name, Accumulator(self.device)).add(value, part.stop - part.start)
        return {name: each.value().item() for name, each in sums.items()}

    def save(self, folder: Path) -> None:
        """Write `checkpoint.pt`: the result of `state`, and the epoch, readable with `weights_only=True`."""
        torch.save(self.state() | {"epoch": self.epoch}, folder / CHECKPOINT)

    def state(self) -> dict[str, Any]:
        """Return the state dicts of a checkpoint: `model`, which was evaluated, `optimizer` and `loss_scale`; with an
        average also the model with which the training goes on, and the names of the averaged parameters."""
        states: dict[str, Any] = {"optimizer": self.optimizer.state_dict(), "loss_scale": self.loss_scale.state_dict()}
        if not self.evaluates_others:
            return {"model": self.model.state_dict(), **states}
        trained = host_copy(self.model.state_dict())
        with self._evaluating():
            evaluated = host_copy(self.model.state_dict())
            if self.average is not None:
                self.average.write_unrounded(evaluated)
                states[AVERAGED] = self.average.names
        return {"model": evaluated, UNAVERAGED: trained, **states}

    def load_state(self, state: Mapping[str, Any], epoch: int) -> None:
        """Take over the state dicts of a checkpoint. epoch: of the next step."""
        self.model.load_state_dict(unaveraged(state))
        if self.average is not None:
            self.average.load_average(state)
        self.use(self.optimizer_settings.in_epoch(epoch))
        self.optimizer.load_state_dict(state["optimizer"])
        self.notes += changed_numbers(self.optimizer)
        self.loss_scale.load_state_dict(state.get("loss_scale", {}))  # an older version has none

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote."""
        state = load_checkpoint(folder)
        self.note_unsaved(state)
        self.load_state(state, min(state["epoch"] + 1, self.epochs))
        self.epoch = state["epoch"]

    def note_unsaved(self, state: Mapping[str, Any]) -> None:
        """Note what training changes and a checkpoint does not hold, before the model takes its state over."""
        order = self.data.order(self.trial, 1)
        batches = [order[:FEW], order[-FEW:]]

        def step(experiment: Experiment, model: nn.Module, place: int) -> Any:
            """Return the loss of a few samples."""
            chosen = batches[0 if self.data.in_order else place]
            with self.autocast():
                return look(experiment, model, partial(self.data.train_batch, 1, chosen), self.hp)

        @torch.no_grad()
        def evaluate(experiment: Experiment, model: nn.Module) -> None:
            """Evaluate a few samples."""
            inputs, targets = next(self.data.validation_batches([slice(0, min(FEW, self.data.num_validation))]))
            with self.autocast():
                outputs = forward(model, inputs)
                experiment.loss(copied(outputs), copied(targets))
                metrics_of(experiment, outputs, targets, self.device)

        if (line := unsaved(self.model, self.experiment, unaveraged(state), step, evaluate)) is not None:
            self.notes.append(line)
        if self.device.type == "cuda":  # the copies are no measure of a training's memory
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def load_parameters(self, folder: Path) -> None:
        """Take over the model of a folder that `save` wrote, to evaluate it."""
        state = load_checkpoint(folder, self.device)
        self.model.load_state_dict(state["model"])

    def close(self) -> None:
        """Free the device memory for the next trial of this process."""
        self.data.close()
        del self.model, self.data
        for attribute in ("optimizer", "average", "_step_gradient"):
            vars(self).pop(attribute, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def prepare_torch(settings: Settings, device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """Set threads and the precision of matrix products and convolutions; return a factory of forward-pass contexts."""
    torch.set_num_threads(settings.threads)
    # The momentum of a unit that is dead decays into denormal numbers, which cost a CPU a hundred times as much.
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high" if settings.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = settings.precision == "tf32"  # convolutions, where it is on by default
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision)
    if half is None:
        return nullcontext

    def autocast() -> AbstractContextManager[None]:
        """Return the context of a forward pass in mixed precision."""
        return torch.autocast(device.type, dtype=half)

    return autocast
