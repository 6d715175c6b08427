"""One torch model trained by several processes, each with its share of every batch.

The gradient is that of the whole batch, however unequal the shares: each rank's is weighted by its share before they
are summed, while the backward pass still runs. When that has ended, a device has done its own work and waits for no
other, which is when its speed is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from raygpu.records.training_progress import ControlRequest
from raygpu.training.distributed.buffer_broadcast import BufferBroadcast
from raygpu.training.distributed.coordinator import LocalBatch, Norm, RankReport
from raygpu.training.distributed.gradients import broadcast_initial_state
from raygpu.training.distributed.hidden_group import group_hidden
from raygpu.training.distributed.joint_batch_norm import JointNorms, has_joint_norm, join_batch_norm
from raygpu.training.distributed.micro_batch_check import HOOKED
from raygpu.training.distributed.parallel_training import ParallelTraining
from raygpu.training.distributed.rank_generators import drawn_alike, generators, seed_rank, set_generators
from raygpu.training.distributed.ranks import ParallelSettings, Ranks
from raygpu.training.distributed.ranks_gradient import RanksGradient, keeps_gradients
from raygpu.training.distributed.ranks_turns import THAWED, RanksTurnGradient
from raygpu.training.distributed.replicas import Replicas
from raygpu.training.distributed.stopwatch import SinceExchange, Stopwatch
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.torch.data import Tensors
from raygpu.training.torch.experiment import training_loss
from raygpu.training.torch.host_copy import host_copy
from raygpu.training.torch.models import CHECKPOINT, epoch_seed, has_batch_norm, load_checkpoint
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.parameter_traits import hooked_parameter
from raygpu.training.torch.reduction import EpochLosses, added_turns, clip_gradients, turn_metrics
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.several_optimizers import SeveralOptimizers
from raygpu.training.torch.solo import TorchSolo
from raygpu.training.torch.training_mode import set_training

A_DAY = timedelta(days=1)
"""Timeout of a rank that waits for another to evaluate or save: one that dies ends the wait at once."""


class TorchRanks:
    """The ranks of torch.distributed's default group. Their messages go over gloo, not through a GPU."""

    def __init__(self) -> None:
        self.rank, self.local, self.world = dist.get_rank(), 1, dist.get_world_size()
        self.group = dist.new_group(backend="gloo", timeout=A_DAY)
        """Group of the ranks' processors."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return each rank's value, by rank. All processes call it, and each waits."""
        values_by_rank: list[Any] = [None] * self.world
        dist.all_gather_object(values_by_rank, values[0], self.group)
        return values_by_rank


class TorchParallel(ParallelTraining):
    """Training of one trial of a `TorchExperiment`; with several ranks, torch.distributed has been started.

    solo: the training on this rank's device, with the optimizer's settings of `parallel`.
    """

    def __init__(
        self,
        solo: TorchSolo,
        parallel: ParallelSettings,
        ranks: Ranks,
        *,
        request: Callable[[], ControlRequest] = lambda: "",
    ) -> None:
        self.solo = solo
        super().__init__(parallel, ranks, request, solo.optimizer_settings, solo.samples_per_epoch, solo.epochs)
        self._stopwatch = Stopwatch(solo.device)
        if (ranks.world > 1 or parallel.num_parts > 1) and (name := hooked_parameter(solo.model)) is not None:
            self.notes.append(HOOKED.format(name=name))
        self._replicas: Replicas | None = None
        self._moving: BufferBroadcast | None = None
        self._joint_norms: JointNorms | None = None
        if ranks.world > 1:
            self._spread(solo.model)
        self._note_larger_parts()
        solo.num_steps = len(self._bounds) * self.epochs
        if parallel.num_parts > 1 and has_batch_norm(solo.model):
            self.notes.append("BatchNorm: each part of a batch is normalised by itself")
        if parallel.compile:
            solo.model.compile()
        self._order = torch.empty(0, dtype=torch.int64)
        self._batches: Iterator[tuple[Tensors, Tensors]] = iter(())
        """This rank's parts of the epoch's batches from here on, as they are split at present."""
        self._split: list[list[LocalBatch]] = []
        """The split of the epoch's first and last batch as `_batches` have it; empty to have them made anew."""
        self._begin_losses()
        self._since = SinceExchange()

    def _spread(self, model: nn.Module) -> None:
        broadcast_initial_state(model, self.ranks)
        self._join_batch_norm()
        self.coordinator.equal_parts = self._joint_norms is not None
        self._moving = BufferBroadcast(self.solo.model, self.ranks, self.ranks.group)  # type: ignore[attr-defined]
        self._replicas = Replicas(self.solo.model, self.ranks, self._moving)

    def _join_batch_norm(self) -> None:
        self.notes += join_batch_norm(self.solo.model, self.solo.device)
        if has_joint_norm(self.solo.model):
            self._wait_in_steps("SyncBatchNorm")
            self._joint_norms = JointNorms(compiled=self.parallel.compile)

    @cached_property
    def _gradient(self) -> RanksGradient | RanksTurnGradient:
        """The gradient of a step, made with the optimizer at the first one: after a warm start, since an experiment's
        own may keep a copy of the parameters from its making on."""
        return self._step_gradient()

    def _step_gradient(self) -> RanksGradient | RanksTurnGradient:
        solo, joint = self.solo, self._joint_norms
        copies = keeps_gradients(solo.optimizer)
        gradient = partial(RanksGradient, ranks=self.ranks, device=solo.device, copies=copies, joint_norms=joint)
        if not isinstance(solo.optimizer, SeveralOptimizers):
            return gradient(solo.optimizer.parameters)
        if self.parallel.num_parts > 1:
            raise ValueError("accumulate: several optimizers take turns with whole batches; leave it out")
        gradients = {name: gradient(parameters) for name, parameters in solo.optimizer.parameters_by_name.items()}
        return RanksTurnGradient(
            gradients, self.ranks, solo.device, self._stopwatch, solo.take_unfrozen, self._replicas
        )

    # An epoch

    def _begin_epoch(self) -> None:
        solo, epoch = self.solo, self.epoch + 1
        _ = self._gradient  # before the epoch's random numbers, which differ between ranks
        seed_rank(solo.seed, epoch, self.ranks.rank)
        self._set_order()
        self._begin_losses()
        if self._moving is not None:
            self._moving.begin_epoch()
        if self.epoch:
            solo.model.eval()  # on all ranks, though one evaluates: a model may take that as the end of an epoch
        set_training(solo.model)  # once, as a training on one device: a step may set its parts otherwise

    def _begin_losses(self) -> None:
        self._losses = EpochLosses(self.solo.device, finite_only=self.solo.loss_scale.enabled)
        self._earlier = 0.0, 0.0
        """Numerator and denominator of the losses of this epoch before the checkpoint that was loaded."""
        self._earlier_turns: dict[str, tuple[float, float]] = {}
        """The same of each of several optimizers, on rank 0 of all ranks."""

    def _set_order(self) -> None:
        solo = self.solo
        self._order, self._split = solo.data.order(solo.trial, self.epoch + 1), []

    def _lr(self, step: int) -> float:
        lr = self.solo.optimizer.own_lr
        return super()._lr(step) if lr is None else lr

    def _use(self, settings: OptimizerSettings) -> None:
        self.solo.use(settings)

    def _begin_steps(self) -> None:
        split = [self.coordinator.local_batches(*self._bounds[i]) for i in (0, -1)]
        if self._split != split:  # samples that were read ahead may now be another rank's
            self._split = split
            self._batches = self.solo.data.train_parts(self.epoch + 1, self._own(self.step))
        self._stopwatch.restart()

    def _own(self, step: int) -> Iterator[tuple[torch.Tensor, list[int]]]:
        """Yield this rank's samples of each of the epoch's batches, from a step on, and the sizes of their parts."""
        for start, end in self._bounds[step:]:
            own = self.coordinator.local_batches(start, end)[self.ranks.rank]
            yield self._order[own.first : own.first + own.samples], own.sizes

    def _wait(self) -> None:
        self.solo.wait()

    def _take_step(self, start: int, end: int, lr: float) -> None:
        solo, gradient = self.solo, self._gradient
        local_batches = self.coordinator.local_batches(start, end)
        local_batch = local_batches[self.ranks.rank]
        samples, sizes = local_batch.samples, local_batch.sizes
        share = samples / (end - start)
        if self._moving is not None:
            self._moving.begin_step()
        if self._joint_norms is not None:
            self._joint_norms.begin_step()
        if isinstance(gradient, RanksTurnGradient):
            gradient.begin(samples, share, (solo.seed, self.epoch + 1, self.step))
            return self._take_turns(gradient, samples, whole=end - start == self.parallel.global_batch)
        square = torch.zeros((), device=solo.device) if self.coordinator.measures_noise else None
        gradient.begin(samples, share, square)
        for number, size in enumerate(sizes):
            with gradient.set_aside():
                loss = self._loss()
            self._take_unfrozen()
            self._losses.add(loss, size)
            gradient.add(solo.loss_scale.scaled_part(loss), size, last=number == len(sizes) - 1)
        self._stopwatch.pause()
        gradient.end()
        if self._moving is not None:
            self._moving.end_step()
        self._stopwatch.lap(whole=end - start == self.parallel.global_batch)
        self._unscale()
        measured = square is not None and gradient.has_square
        norm = self._clip() if solo.optimizer.settings.clip_norm is not None or measured else None
        if measured:
            assert square is not None
            assert norm is not None
            self._since.squares.append(solo.loss_scale.unscaled_square(square) / share**2)
            self._since.wholes.append(norm.float().square())
            self._since.shares.append([each.samples for each in local_batches])
        with self._stepping():
            solo.take_step(lr)
        self._since.samples += samples
        self._since.part = max(self._since.part, *sizes)
        return None

    def _take_turns(self, gradient: RanksTurnGradient, own: int, *, whole: bool) -> None:
        """Take the steps of several optimizers on the next batch, of which this rank has `own` samples."""
        self._losses.add(self.solo.take_turns(*next(self._batches), gradient), own)
        self._stopwatch.pause()
        if self._moving is not None:
            self._moving.end_step()
        self._stopwatch.lap(whole=whole)
        self._since.samples += own
        self._since.part = max(self._since.part, own)

    def _stepping(self) -> AbstractContextManager[None]:
        """Return the context of the optimizer's step; one of the experiment's own draws the same on all ranks."""
        if self._replicas is None or isinstance(self.solo.optimizer, BuiltinOptimizer):
            return nullcontext()
        return drawn_alike(self.solo.device, self.solo.seed, self.epoch + 1, self.step, 1)

    def _take_waited(self) -> float | None:
        return self.solo.data.take_waited()

    def _loss(self) -> Any:
        """Return the result of the training step on this rank's next part of a batch."""
        solo = self.solo
        inputs, targets = next(self._batches)
        with (
            solo.autocast(),
            nullcontext() if self._replicas is None else self._replicas.watched(),
            nullcontext() if self._joint_norms is None else self._joint_norms.noted(),
        ):
            return training_loss(solo.experiment, solo.model, inputs, targets, solo.hp)

    def _take_unfrozen(self) -> None:
        """Take in what the training step has unfrozen. Raises ValueError for that with several ranks."""
        if self.solo.take_unfrozen() and self.ranks.world > 1:
            raise ValueError(THAWED)

    def _unscale(self) -> None:
        """Divide the whole gradient by the loss scale, in fp16."""
        self.solo.loss_scale.unscale(self.solo.optimizer.parameters)

    def _clip(self) -> torch.Tensor:
        """Return the norm of the whole gradient, after clipping it if configured."""
        most = self.solo.optimizer.settings.clip_norm
        return clip_gradients(self.solo.optimizer.parameters, math.inf if most is None else most)

    # What ranks tell each other

    def _evaluate(self) -> dict[str, float]:
        replicas = None if self.solo.evaluates_others else self._replicas  # which are put in the parameters' place
        with (
            nullcontext() if self._moving is None else self._moving.evaluation(),
            nullcontext() if replicas is None else replicas.watched(),
            group_hidden(),
        ):
            metrics = self.solo.evaluate()
        self.notes += [note for note in self.solo.notes if note not in self.notes]
        self.solo.data.take_waited()  # of the evaluation
        if self.solo.device.type == "cuda":  # its batches are no measure of a training's
            torch.cuda.reset_peak_memory_stats(self.solo.device)
        return metrics

    def _report(self, request: ControlRequest) -> tuple[list[RankReport], list[Norm]]:
        since, self._since = self._since, SinceExchange()
        loss_sum, loss_weight = self._loss_parts()
        norms = [Norm(whole.item(), shares) for whole, shares in zip(since.wholes, since.shares, strict=True)]
        mask = [math.isfinite(norm.whole) for norm in norms]  # on all ranks alike: not of a step that fp16 left out
        report = RankReport(
            samples=since.samples,
            rate=self._rate(self.ranks.rank, self._stopwatch.seconds()),
            most=since.most(self.solo.device) * self.parallel.num_parts,
            loss_sum=self.solo.loss_scale.reported(loss_sum),
            loss_weight=loss_weight,
            squares=tuple(square.item() for square in compress(since.squares, mask)),
            request=request,
        )
        return [report], list(compress(norms, mask))

    def _checksum(self) -> int | None:
        return None if self._replicas is None else self._replicas.checksum()

    def _join(self) -> None:
        assert self._replicas is not None
        self._replicas.join(self.epoch)

    def _loss_parts(self) -> tuple[float, float]:
        """Return numerator and denominator of the epoch's loss so far, of this rank's samples."""
        total, weight = self._losses.parts()
        return self._earlier[0] + total.item(), self._earlier[1] + weight.item()

    def _turn_losses(self) -> dict[str, tuple[float, float]]:
        """Return numerator and denominator of the epoch's loss so far, of each of several optimizers, over all ranks.
        All ranks call it."""
        if not isinstance(self.solo.optimizer, SeveralOptimizers):
            return {}
        turn_losses: dict[str, tuple[float, float]] = {}
        for losses in self.ranks.gather([added_turns(self._earlier_turns, self._losses.by_name())]):
            turn_losses = added_turns(turn_losses, losses)
        return turn_losses

    def _further_metrics(self) -> dict[str, float]:
        return turn_metrics(self._turn_losses())

    # Kept

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Copy the state to the host, on rank 0; return the function that writes `checkpoint.pt`, in the format of
        `TorchSolo` with the state within an epoch. All ranks call it."""
        solo = self.solo
        rank_states = self.ranks.gather([(generators(solo.device), self._saved(self._loss_parts()))])
        turn_losses = self._turn_losses()
        states = self.states()
        if self.ranks.rank:
            return lambda: None
        state = self._state() | {
            **(states if self.states_are_copies else host_copy(states)),
            "random": [drawn for drawn, _ in rank_states],
            "loss_sum": sum(loss_sum for _, (loss_sum, _) in rank_states),
            "loss_weight": sum(weight for _, (_, weight) in rank_states),
            "turn_losses": {name: self._saved(parts) for name, parts in turn_losses.items()},
        }
        return partial(torch.save, state, folder / CHECKPOINT)

    def load(self, folder: Path) -> None:
        """Go on from a folder that `save` wrote; with another number of ranks, random numbers are drawn anew."""
        solo = self.solo
        state = self._read(folder)
        self._set_state(state)
        self._load_states(state)
        if self.step:
            self._set_order()
            self._begin_losses()
            set_training(solo.model)
            if not self.ranks.rank:
                self._earlier_turns = state["turn_losses"]
                self._earlier = state["loss_sum"], state["loss_weight"]
            self._set_random(state["random"])

    def _saved(self, parts: tuple[float, float]) -> tuple[float, float]:
        """Return a loss's numerator and denominator as a checkpoint has them: nothing while none in fp16 was finite."""
        return (0.0, 0.0) if self.solo.loss_scale.enabled and not math.isfinite(parts[0]) else parts

    def _set_random(self, states: list[Any]) -> None:
        if len(states) != self.ranks.world:  # drawn anew: no rank is what it was
            seed_all(epoch_seed(self.solo.seed, self.epoch + 1) + self.ranks.rank * 7_919 + self.step)
            return
        set_generators(states[self.ranks.rank], self.solo.device)

    def load_parameters(self, folder: Path) -> None:
        """Begin with a trial's parameters: a warm start."""
        self._load_model(self._read(folder)["model"])

    def states(self) -> dict[str, Any]:
        """Return the state dicts of a checkpoint, on rank 0 at least. All ranks call it. See `TorchSolo.state`."""
        return self.solo.state()

    def _load_states(self, state: dict[str, Any]) -> None:
        with group_hidden():
            self.solo.note_unsaved(state)
        self.solo.load_state(state, self.epoch + 1)
        self.notes += self.solo.notes

    def _load_model(self, state: Mapping[str, Any]) -> None:
        self.solo.model.load_state_dict(state)

    def _read(self, folder: Path) -> dict[str, Any]:
        state: dict[str, Any] = load_checkpoint(folder)
        return state

    def close(self) -> None:
        """Remove the hooks and free memory."""
        if (gradient := vars(self).pop("_gradient", None)) is not None:
            gradient.close()
        self.solo.close()
