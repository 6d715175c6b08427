"""The audit of an array while it trains: one member is trained alone for some steps from its own state, and compared.

A dry run cannot show a difference that only later steps make. An audit takes copies, and leaves the array unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from raygpu.config.generators import random_state_kept
from raygpu.experiment import Experiment
from raygpu.planning.batches import batch_bounds
from raygpu.search.hyperparameters import Hyperparameters
from raygpu.training.base import NotAsAlone, Settings
from raygpu.training.fused.loss_scales import calm
from raygpu.training.fused.member_generators import MemberStreams
from raygpu.training.fused.optimizers import floating
from raygpu.training.fused.program import Program
from raygpu.training.fused.tile import Stacked, Tile, gathered_tile
from raygpu.training.hyperparameters import OptimizerSettings
from raygpu.training.own_copy import own_copy
from raygpu.training.torch.comparison import TOLERANCE, first_difference, relative_difference
from raygpu.training.torch.data import Tensors, TrainingData, cast
from raygpu.training.torch.experiment import training_loss
from raygpu.training.torch.loss_scale import LossScale
from raygpu.training.torch.models import cast_model, epoch_seed, initial_model
from raygpu.training.torch.optimizers import BuiltinOptimizer
from raygpu.training.torch.parameter_average import unaveraged
from raygpu.training.torch.reduction import backward, clip_gradients
from raygpu.training.torch.seeding import seed_all
from raygpu.training.torch.training_mode import set_training

MEMBERS = 3
"""Number of members that an audit steps as a tile, and each alone."""
CALM_EPS = 1e-3
"""Smallest `eps` of Adam in an audit."""
LOSS_TOLERANCE, CHANGE_TOLERANCE = 1e-2, 0.1
"""Largest relative difference between a compiled or replayed step and an eager one: of the loss, and of what the step
changes. Above what rounding gives in single and mixed precision; a wrong step is off by its own size."""
SHARP_TOLERANCES = 1e-3, 1e-2
"""The same in float32 on a CPU, where rounding alone gives at most 1e-6 and 1e-5 (MLP, CNN and ResNet); larger
differences mean a reordered update, or a cached step of slightly different code."""
SHAKES = 8
"""Number of rounding errors by which parameters are changed, to see whether a member's steps are stable."""
ROUNDINGS = 100
"""Number of rounding errors of a parameter below which a step's change is not compared."""


class AuditedArray(Protocol):
    """The part of an array that an audit or a takeover uses: see `TorchArray`."""

    experiment: Experiment
    settings: Settings
    program: Program
    data: TrainingData
    device: torch.device
    epoch: int
    epochs: int
    batch_size: int
    steps_per_epoch: int
    compiled_s: dict[int, float]
    graphs: bool
    discard_step: Callable[[int], str] | None

    def place(self, trial_id: str) -> tuple[Tile, int]:
        """Return the tile of a member, and its row there. Raises KeyError for one that was dropped."""

    def member_state(self, trial_id: str) -> dict[str, Any]:
        """Return a member's checkpoint as its training alone would have saved it."""

    def streams(self, tile: Tile) -> MemberStreams | None:
        """Return the random numbers of a tile's members in this epoch; None if the model draws none."""

    def step(self, tile: Tile, inputs: Tensors, targets: Tensors, numbers: torch.Tensor) -> torch.Tensor:
        """Take one optimizer step of a tile; return the losses, packed, (width, ...)."""


def is_due(epoch: int) -> bool:
    """Return whether an array is audited after this epoch: 1, 2, 4, 8 ..."""
    return epoch & (epoch - 1) == 0


def audit(array: AuditedArray, trial_id: str) -> None:
    """Raise NotAsAlone if a member's next steps differ from those of the same trial alone.

    The steps are an epoch's first and last batch, in double precision if the model's code takes it. A model that runs
    out of memory beside the array is not audited, nor is a member that diverged.
    """
    tile, place = array.place(trial_id)
    if not all(bool(stack[place].isfinite().all()) for stack in tile.parameters.values()):
        return  # a member that diverged
    try:
        with random_state_kept():
            _audit(array, tile, place)
            _audit_compiled(array, tile)
    except (torch.OutOfMemoryError, MemoryError):
        return


def _audit(array: AuditedArray, tile: Tile, place: int) -> None:
    batches = _batches(array)
    others = [i for i in range(len(tile.trials)) if i != place]
    chosen = [place, *random.Random(array.epoch).sample(others, min(len(others), MEMBERS - 1))]
    names = [tile.trials[i].trial_id for i in chosen]
    for dtype in (torch.float64, torch.float32):
        try:
            wanted = [_MemberAlone(array, name, dtype).train(batches) for name in names]
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:
            if dtype == torch.float32:
                raise
            continue
        break
    copy = gathered_tile([(tile, i) for i in chosen], len(chosen)).cast(dtype)
    copy.optimizer_settings = [_calm(settings) for settings in copy.optimizer_settings]
    calm(array.program.optimizer.loss_scales(copy.optimizer_state))
    _step(array, copy, batches, dtype)
    stacked = copy.parameters | copy.fixed | copy.buffers
    for row, (trial_id, expected) in enumerate(zip(names, wanted, strict=True)):
        member_tensors = {name: stacked[array.program.owners[name]][row] for name in expected}
        name = _difference(member_tensors, expected, dtype)
        if name is not None and not _is_unstable(array, trial_id, batches, expected, dtype):
            raise NotAsAlone(
                f"{name} of {trial_id} after epoch {array.epoch}: some steps from there differ from the same steps of"
                " the trial alone; the model keeps state in Python, or does something else in later steps"
            )


def _calm(settings: OptimizerSettings) -> OptimizerSettings:
    """Raise Adam's `eps` to CALM_EPS, at which a gradient that is only rounding makes no step of full size."""
    if settings.optimizer == "sgd":
        return settings
    later = tuple((epoch, _calm(each)) for epoch, each in settings.later)
    return replace(settings, eps=max(settings.eps, CALM_EPS), later=later)


def _difference(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], dtype: torch.dtype) -> str | None:
    """Return the name of what differs beyond rounding; None if nothing does."""
    return (first_difference if dtype == torch.float64 else _whole_difference)(found, wanted, dtype)


def _is_unstable(
    array: AuditedArray,
    trial_id: str,
    batches: Sequence[tuple[int, int, int]],
    expected: dict[str, torch.Tensor],
    dtype: torch.dtype,
) -> bool:
    """Return whether the steps of a trial alone differ as well if its parameters differ by rounding, as of one that
    diverges: nothing can be compared then."""
    return _difference(_MemberAlone(array, trial_id, dtype, shaken=True).train(batches), expected, dtype) is not None


def _whole_difference(
    found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], dtype: torch.dtype
) -> str | None:
    """Return "the parameters" if all of them together differ beyond rounding, else None: single float32 values may be
    noise."""
    floating = [name for name, value in wanted.items() if value.is_floating_point()]
    one, other = (torch.cat([values[name].flatten() for name in floating]) for values in (found, wanted))
    return "the parameters" if relative_difference(one, other) > TOLERANCE[dtype] else None


def _batches(array: AuditedArray) -> list[tuple[int, int, int]]:
    """Return number, start and end of an epoch's first and last batch; of a stream of the first."""
    bounds = list(batch_bounds(array.data.samples_per_epoch, array.batch_size))
    return [(number, *bounds[number]) for number in sorted({0, 0 if array.data.in_order else len(bounds) - 1})]


class _MemberAlone:
    """A member's trial alone, started from the member's state."""

    def __init__(self, array: AuditedArray, trial_id: str, dtype: torch.dtype, *, shaken: bool = False) -> None:
        """shaken: whether to change the parameters by some rounding errors."""
        tile, place = array.place(trial_id)
        self.array, self.trial, self.dtype = array, tile.trials[place], dtype
        self.optimizer_settings = _calm(tile.optimizer_settings[place].in_epoch(max(1, array.epoch)))
        state = array.member_state(trial_id)
        self.hp = Hyperparameters(self.trial.hyperparameters)
        self.experiment = own_copy(array.experiment)
        model = initial_model(self.experiment, self.hp, self.trial.seed)
        self.model: nn.Module = cast_model(model, dtype).to(array.device)
        self.model.load_state_dict(unaveraged(state))
        for name in dict(self.model.named_buffers()).keys() - self.model.state_dict().keys():  # persistent=False
            self.model.get_buffer(name).copy_(tile.buffers[name][place])
        if shaken:
            for place, parameter in enumerate(self.model.parameters()):
                if parameter.is_floating_point() or parameter.is_complex():
                    parameter.data.mul_(1 + (-1) ** place * SHAKES * torch.finfo(dtype).eps)
        self.optimizer = BuiltinOptimizer(self.optimizer_settings, self.model.parameters())
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss_scale = LossScale(array.device, enabled=array.settings.scales_loss)
        self.loss_scale.load_state_dict(state["loss_scale"])

    def train(self, batches: Sequence[tuple[int, int, int]]) -> dict[str, torch.Tensor]:
        """Take steps on these batches; return the parameters and buffers after them."""
        array, data = self.array, self.array.data
        order = data.order(self.trial, array.epoch)
        set_training(self.model)
        seed_all(epoch_seed(self.trial.seed, array.epoch))
        left_out = 0  # steps, as those before count as taken
        with sdpa_kernel(SDPBackend.MATH):
            for number, start, end in batches:
                batch = data.train_batch(array.epoch, order[start:end])
                inputs, targets = (cast(part, self.dtype) for part in batch)
                loss = training_loss(self.experiment, self.model, inputs, targets, self.hp)
                backward(self.loss_scale.scaled(loss))
                self.loss_scale.unscale(self.optimizer.parameters)
                if self.optimizer_settings.clip_norm is not None:
                    clip_gradients(self.optimizer.parameters, self.optimizer_settings.clip_norm)
                step = (array.epoch - 1) * array.steps_per_epoch + number
                lr = self.optimizer_settings.lr_at(step, array.steps_per_epoch, array.epochs)
                self.optimizer.num_steps = step - left_out
                self.optimizer.take_unfrozen()
                self.loss_scale.step(partial(self.optimizer.step, lr))
                left_out = step + 1 - self.optimizer.num_steps
        return self.model.state_dict()


def _step(array: AuditedArray, tile: Tile, batches: Sequence[tuple[int, int, int]], dtype: torch.dtype | None) -> None:
    """Take steps of a tile, eager and without mixed precision."""
    program, tile.streams = array.program, array.streams(tile)
    context: Any = program.context
    program.context = nullcontext
    try:
        with program.training():
            for number, start, end in batches:
                program.eager_step(tile, *_batch(array, tile, start, end, dtype), _numbers(array, tile, number, dtype))
    finally:
        program.context = context


def _batch(array: AuditedArray, tile: Tile, start: int, end: int, dtype: torch.dtype | None) -> tuple[Tensors, Tensors]:
    data = array.data
    orders = [data.order(trial, array.epoch)[start:end].clone() for trial in tile.trials]  # the whole ones are freed
    inputs, targets = data.train_batch(array.epoch, torch.stack(tile.rows_of(orders)))
    return cast(inputs, dtype), cast(targets, dtype)


def _numbers(array: AuditedArray, tile: Tile, step: int, dtype: torch.dtype | None) -> torch.Tensor:
    settings = tile.rows_of(tile.optimizer_settings)
    numbers = array.program.optimizer.numbers(settings, max(1, array.epoch), array.steps_per_epoch, array.epochs)[step]
    return numbers.to(array.device, dtype or array.program.number_type)


def _audit_compiled(array: AuditedArray, tile: Tile) -> None:
    """Compare the compiled step of a tile, and the replayed step of some of its members, with the eager one.

    Raises NotAsAlone if they differ. A compiled step that is kept is then discarded, as later arrays would load it.
    """
    if tile.width in array.compiled_s and not same_steps(array, tile, array.program.step):
        also = array.discard_step(tile.width) if array.discard_step is not None else ""
        raise NotAsAlone(f"after epoch {array.epoch} the compiled step differs from the eager one{also}")
    if array.graphs and not replays(array, tile):
        raise NotAsAlone(f"after epoch {array.epoch} the replayed step differs from the eager one")


def replays(array: AuditedArray, tile: Tile) -> bool:
    """Return whether a CUDA graph of the first members' step does the same as their eager step."""
    few = min(MEMBERS, len(tile.trials))
    return same_steps(array, gathered_tile([(tile, i) for i in range(few)], few), array.step)


def same_steps(array: AuditedArray, tile: Tile, step: Callable[..., torch.Tensor]) -> bool:
    """Return whether a step on a copy of a tile does the same as an eager step, as far as the precision shows.

    step: called with a tile, inputs, targets and numbers, as `Program.step`.
    Compared are the losses of two steps, and the changes of the first one in each member's parameters and in its
    buffers.
    """
    is_sharp = array.device.type == "cpu" and array.settings.precision == "float32"
    of_loss, of_change = SHARP_TOLERANCES if is_sharp else (LOSS_TOLERANCE, CHANGE_TOLERANCE)
    losses, changes = _stepped(array, tile, array.program.eager_step)
    found_losses, found_changes = _stepped(array, tile, step)
    finite = losses.isfinite() & found_losses.isfinite()
    if not torch.allclose(found_losses[finite], losses[finite], rtol=of_loss, atol=of_loss):
        return False
    return all(_same(candidate, change, of_change) for candidate, change in zip(found_changes, changes, strict=True))


def _same(found: _Changes, expected: _Changes, tolerance: float) -> bool:
    """Compare the changes of all rows; a row that diverged is not compared."""
    allowed = torch.maximum(tolerance * expected.values.norm(dim=1), CHANGE_TOLERANCE * expected.rounding)
    close = (found.values - expected.values).norm(dim=1) <= allowed
    diverged = ~(expected.values.isfinite().all(dim=1) & expected.rounding.isfinite())
    return bool((close | diverged).all())


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes that a step made in each row of some tensors."""

    values: torch.Tensor
    """float64, (width, n)."""
    rounding: torch.Tensor
    """Norm of each row's change that may be rounding, (width,)."""


def _stepped(array: AuditedArray, tile: Tile, step: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, list[_Changes]]:
    """Take two steps on a copy of a tile; return their losses, and the changes of the first one."""
    copy = gathered_tile([(tile, i) for i in range(len(tile.trials))], tile.width)
    copy.optimizer_settings = [_calm(settings) for settings in copy.optimizer_settings]
    calm(array.program.optimizer.loss_scales(copy.optimizer_state))
    copy.streams = array.streams(copy)
    stacks = copy.parameters, copy.buffers, array.program.optimizer.average(copy.optimizer_state)
    before = [_flat(stack, copy.width) for stack in stacks]
    with array.program.training():
        arguments = (*_batch(array, copy, 0, array.batch_size, None), _numbers(array, copy, 0, None))
        first = step(copy, *arguments).clone()
        after = [_flat(stack, copy.width) for stack in stacks]
        second = step(copy, *arguments)
    eps = ROUNDINGS * torch.finfo(array.program.number_type).eps
    changes = [
        _Changes(torch.where(new == old, 0.0, new - old), eps * old.nan_to_num(0.0, 0.0, 0.0).norm(dim=1))
        for new, old in zip(after, before, strict=True)
    ]  # an infinite number that stays, as of a mask of attention, has not changed
    return torch.stack([first, second]).double(), changes


def _flat(stack: Stacked, width: int) -> torch.Tensor:
    """Return all floating-point tensors of a stack, float64 (width, n)."""
    real = [torch.view_as_real(v) if v.is_complex() else v for v in floating(stack).values()]
    if not real:
        return torch.zeros(width, 0, dtype=torch.float64)
    return torch.cat([value.reshape(width, -1).double() for value in real], dim=1)
