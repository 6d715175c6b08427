"""One rank of a pipeline over micro-batches, by torch.distributed.pipelining.

    rank = TorchPipeline(experiment, splits, trial, settings, PipelineSettings(("item_tower",), 8), device)
    turn = rank.turn()      # on each rank of the default process group, which has as many ranks as stages

A step's gradient is that of the whole batch, however many micro-batches: their losses are added up with the weight of
their samples. Micro-batches of a trace have one shape, so a smaller one is filled with its own samples again, whose
outputs the loss does not see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from raygpu.errors import BadInput
from raygpu.experiment import Experiment, Mean, Splits, Sum
from raygpu.planning.batch_shares import parts
from raygpu.planning.batches import batch_bounds, epoch_order, num_batches
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import Trial
from raygpu.training.base import Settings
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.memory_usage import GIB
from raygpu.training.torch.data import Tensors, home_of, moved, rows, tensors
from raygpu.training.torch.models import epoch_seed, initial_model
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.pipeline_cut import INNER, cut_model, notes, require_submodules
from raygpu.training.torch.reduction import Accumulator, as_parts, divisor
from raygpu.training.torch.seeding import seed_all, seed_of
from raygpu.training.torch.solo import prepare_torch
from raygpu.training.torch.step_memory import StepMemory
from raygpu.training.torch.training_mode import set_training

WARMUP_STEPS = 10
"""Maximum number of warm-up steps before the timed epoch."""


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """A pipeline: where it is cut, and its schedule."""

    stages: tuple[str, ...]
    """Names of the submodules with which the stages 1, 2 ... begin; stage 0 begins with the model."""
    micro_batches: int
    """Parts of a batch that follow each other through the stages."""
    schedule: Literal["gpipe", "1f1b"] = "gpipe"
    """`gpipe`: all forward passes, then all backward passes; `1f1b`: in turn, which keeps fewer activations."""

    @property
    def num_stages(self) -> int:
        """Number of stages, each on a device of its own."""
        return len(self.stages) + 1


@dataclass(frozen=True, slots=True)
class PipelineTurn:
    """One turn of a pipeline, as one rank knows it."""

    epoch_s: float
    """Seconds of the epoch's training, of the slowest rank; known to all ranks."""
    loss: float
    """Mean training loss of the epoch; known to all ranks."""
    memory_gib: float
    """Largest memory in use on this rank's device; on a CPU, computed from what a step keeps."""
    busy_s: float
    """Seconds of this rank's own forward and backward work, without waiting for its neighbours."""


class TorchPipeline:
    """One stage of a trial of a `TorchExperiment`; its rank in torch.distributed's default group is the stage's.

    Every rank calls the same methods. Raises BadInput if the model, the batch or the schedule does not allow it.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Splits,
        trial: Trial,
        settings: Settings,
        pipeline: PipelineSettings,
        device: torch.device,
    ) -> None:
        self.experiment, self.pipeline, self.device = experiment, pipeline, device
        self.hp, self.seed, self.epochs = Hyperparameters(trial.hyperparameters), trial.seed, settings.epochs or 1
        self.rank = dist.get_rank()
        self.is_first, self.is_last = self.rank == 0, self.rank == pipeline.num_stages - 1
        prepare_torch(settings, device)
        self.optimizer_settings = OptimizerSettings.of(self.hp)
        self.num_train, self.samples_per_epoch = splits.num_train, splits.samples_per_epoch
        self.batch_size = min(self.optimizer_settings.batch_size, self.samples_per_epoch)
        self.steps_per_epoch = num_batches(self.samples_per_epoch, self.batch_size)
        model = initial_model(experiment, self.hp, trial.seed)
        _require_possible(model, pipeline, settings, self.batch_size)
        set_training(model)
        self.notes = notes(model)
        self.chunk = -(-self.batch_size // pipeline.micro_batches)
        """Samples of a micro-batch; where a batch has fewer, the rest is filled."""
        first = rows(tensors(splits.train_inputs), slice(0, self.chunk))
        pipe = cut_model(model, experiment.augment(first, self.hp), pipeline.stages)
        self.stage = pipe.build_stage(self.rank, device)
        del model, pipe
        self.home = home_of(splits, device)
        self._inputs = moved(tensors(splits.train_inputs), self.home) if self.is_first else None
        self._targets = moved(tensors(splits.train_targets), self.home) if self.is_last else None
        self.optimizer = BuiltinOptimizer(self.optimizer_settings, self.stage.submod.parameters())
        self._stopwatch = _Stopwatch(device)
        self._loss = _LossOfChunks(experiment, device)
        self._schedule = self._make_schedule()
        self._has_weights: bool | None = None
        """Whether the loss is a `Mean` with a denominator of its own; None before the first step."""

    def _make_schedule(self) -> Any:
        from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

        for name in ("forward_one_chunk", "backward_one_chunk"):
            setattr(self.stage, name, self._stopwatch.timed(getattr(self.stage, name)))
        kind = ScheduleGPipe if self.pipeline.schedule == "gpipe" else Schedule1F1B
        loss = self._stopwatch.timed(self._loss)
        return kind(self.stage, self.pipeline.micro_batches, loss_fn=loss, scale_grads=False)

    def parameters(self) -> dict[str, torch.Tensor]:
        """Return this stage's parameters by their names in the model."""
        named = self.stage.submod.named_parameters()
        return {name.removeprefix(f"{INNER}."): parameter.detach() for name, parameter in named}

    def turn(self) -> PipelineTurn:
        """Take warm-up steps, then train a timed epoch. The warm-up changes the model, as that of one device does."""
        step_memory = StepMemory() if self.device.type == "cpu" else None
        for _ in self._steps(epoch=1, most=min(WARMUP_STEPS, self.steps_per_epoch), kept=step_memory):
            pass
        self._meet()
        if step_memory is None:
            torch.cuda.reset_peak_memory_stats(self.device)
        self._stopwatch.restart()
        started = time.perf_counter()
        loss = self.train(epoch=1)
        self._meet()
        seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64, device=self.device)
        dist.all_reduce(seconds, dist.ReduceOp.MAX)
        if step_memory is None:
            num_bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            num_bytes = step_memory.num_bytes(self._held()) + sum(each.nbytes for each in self.optimizer.parameters)
        return PipelineTurn(seconds.item(), loss, num_bytes / GIB, self._stopwatch.seconds())

    def train(self, epoch: int) -> float:
        """Train one pass over the data; return its mean loss, on all ranks. Epochs are counted from 1."""
        losses = Accumulator(self.device)
        for loss, count in self._steps(epoch):
            losses.add(loss, count)
        value = losses.value() if self.is_last else torch.zeros((), dtype=torch.float64, device=self.device)
        dist.broadcast(value, self.pipeline.num_stages - 1)
        return value.item()

    def _steps(self, epoch: int, most: int | None = None, kept: StepMemory | None = None) -> Iterator[tuple[Any, int]]:
        """Take an epoch's steps, or its first `most`; yield the loss, which the last stage knows, and the samples.

        kept: counts what the last of these steps keeps.
        """
        seed_all(self._epoch_seed(epoch))
        order = torch.from_numpy(epoch_order(self.seed, epoch, self.num_train, self.samples_per_epoch)).to(self.home)
        bounds = list(batch_bounds(self.samples_per_epoch, self.batch_size))[:most]
        for number, (start, end) in enumerate(bounds):
            counted = kept is not None and number == len(bounds) - 1
            with kept.counting() if kept is not None and counted else nullcontext():
                self._run(order[start:end])
            self._finish_gradient()
            step = (epoch - 1) * self.steps_per_epoch + number
            self.optimizer.take_unfrozen()
            self.optimizer.step(self.optimizer_settings.lr_at(step, self.steps_per_epoch, self.epochs))
            yield self._loss.value() if self.is_last else 0.0, end - start

    def _epoch_seed(self, epoch: int) -> int:
        """Return the seed of this stage's random numbers: stage 0, which augments, has that of one device."""
        if self.is_first:
            return epoch_seed(self.seed, epoch)
        return seed_of(self.seed, epoch, self.rank)

    def _run(self, chosen: torch.Tensor) -> None:
        """Run all micro-batches of a batch forward and backward."""
        sizes = parts(len(chosen), self.pipeline.micro_batches)
        sizes += [0] * (self.pipeline.micro_batches - len(sizes))
        arguments: tuple[torch.Tensor, ...] = ()
        if self._inputs is not None:
            inputs = moved(rows(self._inputs, chosen), self.device)
            arguments = _filled(self.experiment.augment(inputs, self.hp), sizes, self.chunk)
        numbers = None
        if self._targets is not None:
            self._loss.begin(moved(rows(self._targets, chosen), self.device), sizes)
            numbers = torch.arange(len(sizes))  # torch cuts them into one for each micro-batch
        self._schedule.step(*arguments, target=numbers, return_outputs=False)

    def _finish_gradient(self) -> None:
        """Divide the gradient by the denominator of the whole batch, and clip it by its norm over all stages."""
        last = self.pipeline.num_stages - 1
        gradients = [each.grad for each in self.optimizer.parameters if each.grad is not None]
        if self._has_weights is None:
            weights_flag = torch.tensor(float(self._loss.kind is Mean), device=self.device)
            dist.broadcast(weights_flag, last)
            self._has_weights = bool(weights_flag.item())
        if self._has_weights:
            weight = self._loss.weight if self.is_last else torch.zeros((), dtype=torch.float64, device=self.device)
            dist.broadcast(weight, last)
            for gradient in gradients:
                gradient.div_(divisor(weight))
        if self.optimizer_settings.clip_norm is not None:
            square = torch.zeros((), device=self.device)
            if gradients:
                square += nn.utils.get_total_norm(gradients) ** 2
            dist.all_reduce(square)
            nn.utils.clip_grads_with_norm_(self.optimizer.parameters, self.optimizer_settings.clip_norm, square.sqrt())

    def _meet(self) -> None:
        """Wait for this device, and for all ranks."""
        dist.all_reduce(torch.zeros((), device=self.device))
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _held(self) -> list[torch.Tensor]:
        """Return the tensors that this rank keeps all the time, with torch's buffers for what arrives."""
        arriving = [info for table in (self.stage.args_recv_info, self.stage.grad_recv_info) for info in table.values()]
        return [
            *self.stage.submod.parameters(),
            *self.stage.submod.buffers(),
            *(buffer for buffers in self.optimizer.buffers for buffer in buffers),
            *(info.buffer for infos in arriving for info in infos if getattr(info, "buffer", None) is not None),
        ]


class _LossOfChunks:
    """The experiment's loss of each micro-batch, weighted so that the gradients add up to that of the batch."""

    def __init__(self, experiment: Experiment, device: torch.device) -> None:
        self._experiment, self._device = experiment, device
        self._targets: Tensors = torch.empty(0)
        self._sizes: list[int] = []
        self.kind: type = float
        """Mean, Sum, or float of a plain number."""
        self.total = self.weight = torch.zeros((), dtype=torch.float64, device=device)
        """Numerator and denominator of the batch's loss."""

    def begin(self, targets: Tensors, sizes: list[int]) -> None:
        """Begin a batch. sizes: samples of each micro-batch, of the targets in their order."""
        self._targets, self._sizes = targets, sizes
        self.total = self.weight = torch.zeros((), dtype=torch.float64, device=self._device)

    def __call__(self, outputs: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """Return what a micro-batch adds to the loss of its batch; of a `Mean`, to its numerator."""
        place = int(number)
        size, start = self._sizes[place], sum(self._sizes[:place])
        if not size:
            return outputs.sum() * 0
        loss = self._experiment.loss(outputs[:size], rows(self._targets, slice(start, start + size)))
        total, weight = as_parts(loss, size, self._device)
        self.total, self.weight = self.total + total, self.weight + weight
        self.kind = type(loss) if isinstance(loss, Mean | Sum) else float
        value: torch.Tensor = loss.total if isinstance(loss, Mean | Sum) else loss * (size / sum(self._sizes))
        return value if value.requires_grad else outputs.sum() * 0

    def value(self) -> Any:
        """Return the loss of the batch, as the experiment would."""
        if self.kind is Mean:
            return Mean(self.total, self.weight)
        return Sum(self.total) if self.kind is Sum else self.total / self.weight


class _Stopwatch:
    """Adds up the device's own seconds in some calls: by events of a GPU, which wait for nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._seconds = device, 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose calls are timed."""

        def call(*arguments: Any, **named: Any) -> Any:
            """Call the function, and add its time."""
            if self._device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                result = function(*arguments, **named)
                end.record()
                self._events.append((begin, end))
                return result
            started = time.perf_counter()
            result = function(*arguments, **named)
            self._seconds += time.perf_counter() - started
            return result

        return call

    def restart(self) -> None:
        """Begin anew."""
        self._seconds = 0.0
        self._events.clear()

    def seconds(self) -> float:
        """Return the seconds since the last restart. The device has finished its work."""
        return self._seconds + sum(begin.elapsed_time(end) for begin, end in self._events) / 1000


def _filled(inputs: Tensors, sizes: list[int], chunk: int) -> tuple[torch.Tensor, ...]:
    """Return a batch's inputs as micro-batches of `chunk` samples, one after the other.

    sizes: samples of each. A smaller one is filled with its own samples again, an empty one with the batch's.
    """
    input_tensors = tuple(inputs.values()) if isinstance(inputs, dict) else (inputs,)
    if all(size == chunk for size in sizes):
        return input_tensors
    places, start = [], 0
    for size in sizes:
        again = torch.arange(chunk)
        places.append(start + again % size if size else again % sum(sizes))
        start += size
    chosen = torch.cat(places).to(input_tensors[0].device)
    return tuple(tensor[chosen] for tensor in input_tensors)


def _require_possible(model: nn.Module, pipeline: PipelineSettings, settings: Settings, batch_size: int) -> None:
    """Raise BadInput with a line for each fault that needs no tracing."""
    require_submodules(model, pipeline.stages)
    faults, number = [], pipeline.micro_batches
    if not pipeline.stages:
        faults.append("stages: read none; a pipeline needs the name of a submodule with which stage 1 begins")
    if not 1 <= number <= batch_size:
        faults.append(
            f"micro_batches: read {number}; a batch has {batch_size} samples, so 1 to {batch_size} are possible"
        )
    if pipeline.schedule == "1f1b" and number < pipeline.num_stages:
        faults.append(f"micro_batches: read {number}; 1f1b needs one for each of the {pipeline.num_stages} stages")
    if settings.precision in ("bf16", "fp16"):
        faults.append(
            f"precision: read {settings.precision}; a pipeline is traced in the model's own precision: use float32 or"
            " tf32"
        )
    if faults:
        raise BadInput(faults)
    if dist.get_world_size() != pipeline.num_stages:
        raise ValueError(f"{dist.get_world_size()} ranks for {pipeline.num_stages} stages")
