"""Trials of one signature trained as one array of torch models: stacked parameters, one program for all members.

    array = TorchArray(experiment, splits, trials, settings)
    while (results := array.run_epoch()) is not None:     # {trial_id: EpochResult}
        array.drop(losers(results))                       # the others are compacted

Each member equals the same trial trained alone (`TorchSolo`): the same initial parameters, the same order of data and
the same random numbers (dropout), from its own seed, and the same rule for every number.

An array of more members than its width trains them in tiles of that width, one after the other in every epoch. Tiles
are independent, so the width is a matter of speed and memory alone.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn

from raygpu.experiment import Experiment
from raygpu.planning.array_tiles import arrange
from raygpu.planning.batches import batch_bounds, evaluation_bounds, num_batches
from raygpu.planning.scaling_laws import Affine
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.search.trials import EpochResult, Trial
from raygpu.training.base import ARRAY_CHECKPOINT, NotAsAlone, Settings
from raygpu.training.folds import Data
from raygpu.training.fused.audit import audit, is_due
from raygpu.training.fused.cuda_graph import GraphedStep
from raygpu.training.fused.evaluation import MemberMeans, MemberValues
from raygpu.training.fused.guard import Guard, require_distinct
from raygpu.training.fused.loss_scales import reported
from raygpu.training.fused.member_generators import MemberStreams
from raygpu.training.fused.member_models import MemberModels
from raygpu.training.fused.member_step import step_facts
from raygpu.training.fused.optimizers import ArrayOptimizer, floating
from raygpu.training.fused.program import Program, num_samples
from raygpu.training.fused.refusal import OWN_OPTIMIZER
from raygpu.training.fused.saved_array import member_state
from raygpu.training.fused.takeover import copy_members, write_member
from raygpu.training.fused.tile import Stacked, Tile, first_rows, gathered_tile, joined
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.data import Tensors
from raygpu.training.torch.evaluation_batch import EvaluationBatch
from raygpu.training.torch.experiment import overrides
from raygpu.training.torch.models import (
    CHECKPOINT,
    default_device,
    epoch_seed,
    load_checkpoint,
)
from raygpu.training.torch.read_data import training_data
from raygpu.training.torch.reduction import Accumulator
from raygpu.training.torch.solo import prepare_torch

DEFAULT_WIDTH = 64


class TorchArray:
    """Several trials of a `TorchExperiment`, trained together as one array of models.

    trials: of one signature. width: members that step as one program; more of them train in turns.
    device: by default the GPU that this process sees, else the CPU. dtype: of parameters and floating-point data.
    Raises any exception of the experiment, ValueError for trials that cannot share an array, and NotAsAlone, here or in
    `run_epoch`, if a member would not equal its training alone.
    """

    def __init__(
        self,
        experiment: Experiment,
        splits: Data,
        trials: Sequence[Trial],
        settings: Settings,
        *,
        width: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if settings.epochs is None:
            raise ValueError("epochs: not given; a TorchExperiment trains for a fixed number of epochs")
        if not trials:
            raise ValueError("trials: none given; an array needs at least one member")
        require_distinct(trials)
        if overrides(experiment, "optimizer"):
            raise NotAsAlone(OWN_OPTIMIZER)
        self.experiment = own_copy(experiment)
        self.settings = settings
        self.epochs = settings.epochs
        self.epoch = 0
        self.audits = True
        """Whether audits run: a member is now and then trained alone for some steps, and compared."""
        self.notes: list[str] = []
        """Lines for a person on evaluations."""
        self._evaluation_batch = EvaluationBatch(self.notes)
        self.device = device or default_device()
        context = prepare_torch(settings, self.device)
        self.data = training_data(splits, self.device, dtype, trials, settings.threads)
        optimizers = [OptimizerSettings.of(trial.hyperparameters) for trial in trials]
        sizes = {each.batch_size for each in optimizers}
        if len(sizes) != 1:
            raise ValueError(f"batch_size: members of one array need one, but have {sorted(sizes)}")
        self.batch_size = min(sizes.pop(), self.data.samples_per_epoch)
        self.steps_per_epoch = num_batches(self.data.samples_per_epoch, self.batch_size)
        self.all_optimizers = optimizers
        """Settings of all members at the beginning, which decide on the terms of a step."""
        optimizer = ArrayOptimizer(optimizers, settings.changing, has_loss_scale=settings.scales_loss)
        self.width = min(width or DEFAULT_WIDTH, len(trials))
        self.asked_width = width
        self.eager = Affine(0.0, 0.0)
        self.compiled_s: dict[int, float] = {}
        """Seconds of a compiled step, by width."""
        self.not_compiled: set[int] = set()
        """Widths at which compiling failed, or did not make the step faster."""
        self.discard_step: Callable[[int], str] | None = None
        """Keeps the compiled step of a width from later arrays once an audit has refused it, and returns words on this;
        None where nothing is kept."""
        self.graphs = False
        """Whether the steps of whole batches are recorded as CUDA graphs and replayed."""

        hp = Hyperparameters(trials[0].hyperparameters)
        self._guard = Guard(trials, hp, self.device)
        models = MemberModels(experiment, self.experiment, hp, trials, dtype)
        base = models.base
        facts = step_facts(self.experiment, hp, base, self.data, self.batch_size)
        self.program = Program(self.experiment, hp, base, optimizer, self.device, context, facts)
        self._guard.require_shared_reads()
        self.tiles = [
            self._new_tile([models.make(i) for i in part], [trials[i] for i in part], [optimizers[i] for i in part])
            for part in (part.members for part in arrange(len(trials), self.width, self.eager, {}))
        ]

    def _new_tile(self, models: list[nn.Module], trials: list[Trial], settings: list[OptimizerSettings]) -> Tile:
        parameters = self._stacked([dict(model.named_parameters()) for model in models])
        buffers = self._stacked([dict(model.named_buffers()) for model in models])
        trained = {name: tensor for name, tensor in parameters.items() if name in self.program.trained}
        fixed = {name: tensor for name, tensor in parameters.items() if name not in self.program.trained}
        return Tile(trials, settings, trained, fixed, buffers, self.program.optimizer.new_state(trained, buffers))

    def _stacked(self, parts: list[dict[str, torch.Tensor]]) -> Stacked:
        return {name: torch.stack([part[name].detach() for part in parts]).to(self.device) for name in parts[0]}

    @property
    def trials(self) -> list[Trial]:
        """Trials of the remaining members."""
        return [trial for tile in self.tiles for trial in tile.trials]

    def run_epoch(self) -> dict[str, EpochResult] | None:
        """Train and evaluate the next epoch of every member; return results by trial id, None after the last one."""
        if self.epoch >= self.epochs or not self.tiles:
            return None
        self.epoch += 1
        for tile in self.tiles:
            tile.streams = self.streams(tile)
        with self._guard.epoch():
            self.data.take_waited()  # of steps that were timed, and of audits
            started = time.perf_counter()
            losses = torch.cat([self._train(tile)[: len(tile.trials)] for tile in self.tiles]).tolist()
            train_s = time.perf_counter() - started  # reading the losses has waited for the device
            waited_s = self.data.take_waited()
            means = [self._evaluate(tile) for tile in self.tiles]
            parts = zip(self.tiles, means, strict=True)
            scores = [row for tile, part in parts for row in part.by_member()[: len(tile.trials)]]
            validate_s = time.perf_counter() - started - train_s  # as above
            self.data.take_waited()  # of the evaluation
        if self.audits and (is_due(self.epoch) or self.epoch == self.epochs):
            self.audit(random.Random(self.epoch).choice(self.trials).trial_id)
        return {
            trial.trial_id: EpochResult(
                self.epoch,
                {"train/loss": losses[i], **{f"validation/{name}": value for name, value in scores[i].items()}},
                num_samples=self.data.samples_per_epoch,
                train_s=train_s,
                validate_s=validate_s,
                waited_s=waited_s,
            )
            for i, trial in enumerate(self.trials)
        }

    def audit(self, trial_id: str) -> None:
        """Train a member alone for some steps from its present state. Raises NotAsAlone if they differ."""
        audit(self, trial_id)

    def streams(self, tile: Tile) -> MemberStreams | None:
        """Return the random numbers of a tile's members in this epoch; None if the model draws none."""
        if not self.program.draws:
            return None
        return MemberStreams(tile.rows_of([epoch_seed(t.seed, self.epoch) for t in tile.trials]), self.device)

    def _train(self, tile: Tile) -> torch.Tensor:
        """Train a tile on one pass over the data; return the mean loss of each row, on the device."""
        data = self.data
        order = data.orders(tile.trials, self.epoch, tile.width)
        settings = tile.rows_of(tile.optimizer_settings)
        numbers = self.program.optimizer.numbers(settings, self.epoch, self.steps_per_epoch, self.epochs)
        numbers = numbers.to(self.device, self.program.number_type)
        sums = Accumulator(self.device, (tile.width,), finite_only=self.settings.scales_loss)
        with self.program.training():
            chosen = [order[:, start:end] for start, end in batch_bounds(data.samples_per_epoch, self.batch_size)]
            for number, (inputs, targets) in enumerate(data.train_batches(self.epoch, chosen)):
                losses = self.step(tile, inputs, targets, numbers[number])
                sums.add_packed(losses, chosen[number].shape[1])
        return reported(sums.value(), self.program.optimizer.loss_scales(tile.optimizer_state))

    def step(self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor) -> torch.Tensor:
        """Call `Program.step`; replay it as a CUDA graph if `graphs` is on and the batch has the recorded shapes."""
        if not self.graphs or num_samples(inputs) != self.batch_size:
            return self.program.step(tile, inputs, targets, numbers)
        if tile.graphed is None:
            copy = gathered_tile([(tile, i) for i in range(len(tile.trials))], tile.width)
            copy.streams = self.streams(copy)
            tile.graphed = GraphedStep(self.program, tile, copy, inputs, targets, numbers)
        if not tile.graphed.takes(inputs, targets):
            return self.program.step(tile, inputs, targets, numbers)
        return tile.graphed(inputs, targets, numbers, self.program.drawn(tile, inputs, targets))

    def _evaluate(self, tile: Tile) -> MemberMeans:
        """Return means over the validation data, computed as by `TorchSolo.evaluate`. A tile of one member takes
        smaller batches after an out-of-memory; a wider one has the batches of the trials alone."""

        def means_over(parts: Sequence[slice]) -> MemberMeans:
            """Return means over these parts of the validation data."""
            means = MemberMeans(self.device, tile.width)
            for part, metrics in zip(parts, self._evaluated(tile, parts), strict=True):
                means.add(metrics, part.stop - part.start)
            return means

        return self._evaluation_batch.evaluated(self.data.num_validation, means_over, fixed=tile.width > 1)

    def _evaluated(self, tile: Tile, parts: Sequence[slice]) -> Iterator[dict[str, MemberValues]]:
        """Yield loss and metrics of every member on each part of the validation data."""
        if self.data.shared_validation:
            for inputs, targets in self.data.validation_batches(parts):
                yield self.program.evaluation.evaluate(tile, inputs, targets)
            return
        for part in parts:
            batch = self.data.own_validation_batch(tile.rows_of(tile.trials), part)
            yield self.program.evaluation.evaluate(tile, *batch, own=True)

    def drop(self, trial_ids: Collection[str]) -> None:
        """Take members out; the others move together into as few tiles as hold them."""
        if not any(trial.trial_id in trial_ids for trial in self.trials):
            return
        self._arrange([(tile, i) for tile, i in self._members() if tile.trials[i].trial_id not in trial_ids])

    def rearrange(self) -> None:
        """Cut the members into tiles anew, after `width` or `compiled_s` has changed."""
        self._arrange(self._members())

    def trial_steps(self, width: int) -> Generator[None, None, None]:
        """Take steps of copies of the first members, to be timed, without end; the array itself stays unchanged."""
        tile = gathered_tile(self._members()[:width], width)
        tile.streams = self.streams(tile)
        order = self.data.order(tile.trials[0], 1)[: self.batch_size]
        chosen = order.expand(width, -1)
        settings = tile.rows_of(tile.optimizer_settings)
        numbers = self.program.optimizer.numbers(settings, 1, self.steps_per_epoch, self.epochs)[0]
        numbers = numbers.to(self.device, self.program.number_type)
        for inputs, targets in self.data.train_batches(1, repeat(chosen)):
            with self.program.training():
                self.step(tile, inputs, targets, numbers)
            yield

    def trial_evaluation(self, width: int) -> tuple[int, int]:
        """Evaluate copies of the first members on the first batch, to measure its time and memory.

        Returns the samples of this batch, and of a whole evaluation.
        """
        tile = gathered_tile(self._members()[:width], width)
        tile.streams = self.streams(tile)
        _, count = evaluation_bounds(self.data.num_validation)[0]
        self._evaluation_batch.evaluated(count, lambda parts: [*self._evaluated(tile, parts)], fixed=width > 1)
        return count, self.data.num_validation

    def wait(self) -> None:
        """Wait until the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _members(self) -> list[tuple[Tile, int]]:
        return [(tile, i) for tile in self.tiles for i in range(len(tile.trials))]

    def _arrange(self, members: Sequence[tuple[Tile, int]]) -> None:
        """Cut members, given by their present tiles and places, into tiles anew."""
        parts = arrange(len(members), self.width, self.eager, self.compiled_s)
        self.tiles = [gathered_tile([members[i] for i in part.members], part.width) for part in parts]

    def member_state(self, trial_id: str) -> dict[str, Any]:
        """Return a member's checkpoint as its training alone saves it: `model` and `optimizer` state dicts and the
        epoch."""
        tile, i = self.place(trial_id)
        return member_state(self._as_saved([tile]), i)

    def has_saved(self, epoch: int) -> bool:
        """Return True: every epoch can be saved."""
        return True

    def save_member(self, trial_id: str, folder: Path) -> None:
        """Write a member's `checkpoint.pt`: `TorchSolo` loads it, and its `model` loads into `model(hp)`."""
        torch.save(self.member_state(trial_id), folder / CHECKPOINT)

    def _num_buffers(self, settings: OptimizerSettings) -> int:
        """Return the number of a member's buffers after this epoch: also those that its next epoch begins with."""
        return max(settings.in_epoch(epoch).num_buffers for epoch in (self.epoch, self.epoch + 1))

    def adopt(self, trial_id: str, settings: OptimizerSettings) -> None:
        """Go on with other numbers of the optimizer for a member, of those that may change."""
        tile, i = self.place(trial_id)
        tile.optimizer_settings[i] = settings

    def copy_members(self, donors: Mapping[str, str]) -> None:
        """Copy parameters, buffers and optimizer state to members from others, by trial ids.

        In place, so that compiled steps and CUDA graphs go on. Their random numbers and order of data stay their own.
        """
        copy_members(self, donors)

    def load_member(self, trial_id: str, folder: Path) -> None:
        """Copy parameters, buffers and optimizer state to a member from a checkpoint of `save_member`."""
        write_member(self, trial_id, load_checkpoint(folder))

    def place(self, trial_id: str) -> tuple[Tile, int]:
        """Return the tile of a member, and its row there. Raises KeyError for one that was dropped."""
        for tile in self.tiles:
            for i, trial in enumerate(tile.trials):
                if trial.trial_id == trial_id:
                    return tile, i
        raise KeyError(f"{trial_id} is no member, or was dropped")

    def save(self, folder: Path) -> None:
        """Write `array.pt`: the remaining members, stacked, and the epoch. `save_saved_members` takes some out of
        it."""
        torch.save(self._as_saved(self.tiles), folder / ARRAY_CHECKPOINT)

    def _as_saved(self, tiles: Sequence[Tile]) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "num_steps": self.epoch * self.steps_per_epoch,
            "trial_ids": [trial.trial_id for tile in tiles for trial in tile.trials],
            "num_buffers": [self._num_buffers(settings) for tile in tiles for settings in tile.optimizer_settings],
            "has_average": self.program.optimizer.has_average,
            "has_loss_scale": self.program.optimizer.has_loss_scale,
            "averaged": [settings.ema_decay is not None for tile in tiles for settings in tile.optimizer_settings],
            "tiles": [[first_rows(stack, len(tile.trials)) for stack in tile.stacks()] for tile in tiles],
            "names": self.program.state_names,
            "owners": self.program.owners,
            "optimized": self.program.optimized,
        }

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote: members missing there are dropped, and others in it are left out."""
        state = load_checkpoint(folder, self.device, file=ARRAY_CHECKPOINT)
        self.drop({trial.trial_id for trial in self.trials} - set(state["trial_ids"]))
        places = {name: i for i, name in enumerate(state["trial_ids"])}
        saved = [joined(stacks) for stacks in zip(*state["tiles"], strict=True)]
        parameters, fixed, buffers, *optimizer_state = saved
        optimizer = self.program.optimizer
        if state.get("has_average") and not optimizer.has_average:  # its members have left since
            optimizer_state = optimizer_state[1:]
        elif optimizer.has_average and not state.get("has_average"):  # an older version saved none: it begins here
            optimizer_state = [parameters | floating(buffers), *optimizer_state]
        for tile in self.tiles:
            chosen = [places[trial.trial_id] for trial in tile.trials]
            # What only members needed that have left since, such as a momentum, comes last and is left out.
            for tile_stack, stack in zip(tile.stacks(), [parameters, fixed, buffers, *optimizer_state], strict=False):
                for name, tensor in tile_stack.items():
                    tensor.copy_(stack[name][tile.rows_of(chosen)])
        self.epoch = state["epoch"]

    def close(self) -> None:
        """Free the device memory."""
        self.tiles = []
        self.data.close()
        del self.data, self.program
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
