"""Evaluation of the members of an array on a batch: all at once by `torch.vmap`, or, where it cannot map the metrics,
metrics of one member after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vmap

from raygpu.experiment import Experiment
from raygpu.training.base import LOSS, NotAsAlone, scores
from raygpu.training.fused.largest_tensor import LargestTensor
from raygpu.training.fused.member_step import StepFacts
from raygpu.training.fused.optimizers import ArrayOptimizer
from raygpu.training.fused.refusal import refusal, slow_loops
from raygpu.training.fused.tile import Stacked, Tile
from raygpu.training.fused.vmap_modes import MemberNorms, OwnTensors, RaisedErrors, plain_attention
from raygpu.training.torch.data import Tensors, by_name, copied, of_each
from raygpu.training.torch.full_precision import metrics_of, with_each
from raygpu.training.torch.reduction import Accumulator, as_parts, packed

OUTPUTS = ""
"""Name of the outputs among the metrics; no metric has it."""
FIRST_AT_ONCE = 8
"""Number of members that a CPU evaluates at once in the first evaluation, whose largest tensor tells a better one."""


@dataclass(frozen=True, slots=True)
class MemberValues:
    """The loss or one metric of all members on one batch."""

    packed: torch.Tensor
    """On the device, (width, ...), 0 of members without this metric: see `packed`."""
    given: Sequence[bool] | None = None
    """Whether each member has this metric; None where all have."""


class MemberMeans:
    """Loss and metrics of a tile's members over batches, of each member as `TorchSolo.evaluate` has them alone: over
    the batches for which its `metrics` has given the metric."""

    def __init__(self, device: torch.device, width: int) -> None:
        self._device, self._width = device, width
        self._sums: dict[str, Accumulator] = {}
        self._given: dict[str, list[bool]] = {}
        """Whether each member has had a value, by metric."""

    def add(self, metrics: dict[str, MemberValues], count: int) -> None:
        """Add the results of a batch of `count` samples."""
        for name, values in metrics.items():
            sums = self._sums.setdefault(name, Accumulator(self._device, (self._width,)))
            sums.add_packed(values.packed, count)
            before = self._given.get(name, [False] * self._width)
            now = values.given or [True] * self._width
            self._given[name] = [one or other for one, other in zip(before, now, strict=True)]

    def by_member(self) -> list[dict[str, float]]:
        """Return the metrics of each member, without those that it never had."""
        columns = {name: each.value().tolist() for name, each in self._sums.items()}
        return [
            {name: column[i] for name, column in columns.items() if self._given[name][i]} for i in range(self._width)
        ]


class KeptBuffers:
    """The buffers of an evaluation that may have to be repeated, as they were before it.

    names: of the buffers that are copied; torch counts the writes to the others.
    """

    def __init__(self, buffers: Stacked, names: Collection[str]) -> None:
        self._buffers = buffers
        self._versions = {name: tensor._version for name, tensor in buffers.items()}
        self._copies = {name: buffers[name].clone() for name in names}

    def changed(self) -> set[str]:
        """Return the names of the buffers that were written to meanwhile."""
        return {name for name, tensor in self._buffers.items() if tensor._version != self._versions[name]}

    def put_back(self) -> None:
        """Give the buffers their earlier values. Raises NotAsAlone if a buffer was written to that is not copied."""
        changed = self.changed()
        if lost := sorted(changed - self._copies.keys()):
            raise NotAsAlone(f"an evaluation that changes the buffer {lost[0]}, as earlier ones did not, has an error")
        for name in changed:
            self._buffers[name].copy_(self._copies[name])


class Evaluation:
    """The evaluation of all arrays of one signature. See `Program`, whose model, optimizer, context and facts these
    are."""

    def __init__(
        self,
        experiment: Experiment,
        model: nn.Module,
        optimizer: ArrayOptimizer,
        device: torch.device,
        context: Callable[[], AbstractContextManager[None]],
        facts: StepFacts,
    ) -> None:
        self.experiment = experiment
        self.model = model
        self.optimizer = optimizer
        self.device = device
        self.context = context
        self.draws = facts.evaluation_draws
        """Random numbers that an evaluation draws."""
        self._has_norms = facts.has_norms
        self.metrics_are_fused: bool | None = None
        """Whether vmap computes metrics; None before the first evaluation."""
        self.chunk = FIRST_AT_ONCE
        """Number of members that a CPU evaluates at once."""
        self._changing: set[str] | None = None
        """Names of the buffers that evaluations change; None before the first one."""

    @torch.no_grad()
    def evaluate(self, tile: Tile, inputs: Tensors, targets: Tensors, *, own: bool = False) -> dict[str, MemberValues]:
        """Return `loss` and the metrics of every member on one batch.

        Raises NotAsAlone for a loss that goes on after an error that it has in an array.
        own: whether each member has a batch of its own, (width, batch, ...), or all have the same one, (batch, ...).
        """
        self.model.eval()
        state = self.optimizer.evaluated(tile.optimizer_state, {**tile.parameters, **tile.fixed, **tile.buffers})
        streams = tile.streams.expect(self.draws) if tile.streams else nullcontext()
        norms = MemberNorms() if self._has_norms else nullcontext()
        with self.context(), norms, plain_attention(), streams:
            if self.metrics_are_fused is not False:
                before = tile.streams.state() if tile.streams else []
                buffers = {name: state[name] for name in tile.buffers}
                kept = KeptBuffers(buffers, buffers if self._changing is None else self._changing)
                try:
                    values = self._tried(state, inputs, targets, own=own)
                except (torch.OutOfMemoryError, MemoryError):
                    raise
                except Exception:  # noqa: BLE001 - numpy, .item() and the like; an error of each member comes again
                    self.metrics_are_fused = False
                    kept.put_back()
                    if tile.streams:
                        tile.streams.set_state(before)
                        tile.streams.expect(self.draws)
                else:
                    self._changing = kept.changed() | (self._changing or set())
                    return values
            return self._by_member(tile.width, state, inputs, targets, own=own)

    def _tried(self, state: Stacked, inputs: Tensors, targets: Tensors, *, own: bool) -> dict[str, MemberValues]:
        """Evaluate with metrics that vmap maps, and note at the first time whether it can. Raises any exception."""
        if self.metrics_are_fused:
            return self._at_once(state, inputs, targets, own=own)
        with slow_loops() as slow_operators, self._sized():
            values = self._at_once(state, inputs, targets, own=own)
        self.metrics_are_fused = not slow_operators
        return values

    @contextmanager
    def _sized(self) -> Iterator[None]:
        """Choose the number of members that are evaluated at once by an evaluation inside."""
        with LargestTensor() as largest:
            try:
                yield
            finally:
                self.chunk = largest.members

    def _at_once(self, state: Stacked, inputs: Tensors, targets: Tensors, *, own: bool) -> dict[str, MemberValues]:
        """Evaluate with metrics that vmap maps. Raises RuntimeError where the user's code has caught an error of it."""
        raised = RaisedErrors()

        def one(member: Stacked, inputs: Tensors, targets: Tensors) -> dict[str, torch.Tensor]:
            """Evaluate one member."""
            outputs = self._outputs(member, inputs)
            with raised:
                loss = self.experiment.loss(copied(outputs), copied(targets))  # it may change them
                values = scores(loss, metrics_of(self.experiment, outputs, targets, self.device))
            return {name: packed(value) for name, value in values.items()}

        stacks = self._mapped(one, state, inputs, targets, own=own)
        if raised.errors:
            raise RuntimeError("loss() or metrics() goes on after an error") from raised.errors[0]
        return {name: MemberValues(stack) for name, stack in stacks.items()}

    @property
    def at_once(self) -> int | None:
        """Number of members that are evaluated at once; None for all. Random draws are those of all members."""
        return None if self.device.type != "cpu" or self.draws else self.chunk

    def _mapped(
        self, one: Callable[..., Any], state: Stacked, inputs: Tensors, targets: Tensors, *, own: bool
    ) -> dict[str, Any]:
        """Map the evaluation of one member over all; it may change its batch. own: whether each has one of its own."""
        each = partial(vmap, randomness="different", chunk_size=self.at_once)
        if own:
            return dict(each(one)(state, copied(inputs), copied(targets)))
        return dict(each(lambda member: one(member, copied(inputs), copied(targets)))(state))

    def _outputs(self, own: Stacked, inputs: Tensors) -> Any:
        """Return one member's outputs."""
        arguments: tuple[Any, ...] = ((), inputs) if isinstance(inputs, dict) else ((inputs,),)
        with OwnTensors(next(iter(own.values()))) if self.draws.in_place else nullcontext():
            return functional_call(self.model, dict(own), *arguments)

    def _by_member(
        self, width: int, state: Stacked, inputs: Tensors, targets: Tensors, *, own: bool
    ) -> dict[str, MemberValues]:
        """Evaluate with metrics that vmap cannot map: outputs and loss of all members at once, metrics one by one.

        Raises NotAsAlone where the loss has caught an error of vmap.
        """
        form, raised = None, RaisedErrors()

        def one(member: Stacked, inputs: Tensors, targets: Tensors) -> dict[str, Any]:
            """Compute the tensors of one member's outputs, and its loss."""
            nonlocal form
            form = self._outputs(member, inputs)
            with raised:
                loss = self.experiment.loss(copied(form), copied(targets))
            return {OUTPUTS: _tensors(form), LOSS: packed(loss)}

        values = self._mapped(one, state, inputs, targets, own=own)
        if raised.errors:
            raise NotAsAlone(f"in an evaluation: {refusal(raised.errors[0])}, which goes on after the error")
        stacks, each = values.pop(OUTPUTS), []
        for row in map(itemgetter, range(width)):
            outputs = _with_tensors(form, map(row, stacks))
            expected = copied(of_each(targets, row) if own else targets)
            metrics = metrics_of(self.experiment, outputs, expected, self.device)
            each.append({name: value for name, value in scores(None, metrics).items() if name != LOSS})
        count = len(next(iter(by_name(of_each(inputs, itemgetter(0)) if own else inputs).values())))
        names = dict.fromkeys(name for metrics in each for name in metrics)
        columns = {name: self._column([metrics.get(name) for metrics in each], count) for name in names}
        return {name: MemberValues(stack) for name, stack in values.items()} | columns

    def _column(self, each: Sequence[Any], count: int) -> MemberValues:
        """Return one metric of the members, None of those without it, on a batch of `count` samples."""
        given = [value is not None for value in each]
        if all(given):
            stack = [packed(value) for value in each]
            if len({(tensor.shape, tensor.device) for tensor in stack}) == 1:
                return MemberValues(torch.stack(stack))
        # Parts, since some members give a `Mean` and others a number, or nothing.
        nothing = torch.zeros(2, dtype=torch.float64, device=self.device)
        parts = [nothing if value is None else torch.stack(as_parts(value, count, self.device)) for value in each]
        return MemberValues(torch.stack(parts), given)


def _with_tensors(outputs: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """Return outputs with other tensors, in the order of `_tensors`."""
    return with_each(outputs, lambda _: next(tensors))


def _tensors(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in outputs, in the order of `with_each`."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        """Add a tensor to those that were found."""
        tensors.append(tensor)
        return tensor

    with_each(outputs, note)
    return tensors
