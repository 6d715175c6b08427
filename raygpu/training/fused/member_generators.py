"""Random numbers of an array's members: each member draws from its own generators, as its training alone would.

A member then has the same dropout masks, noise and augmentation whatever the array's width, its neighbours, and the
order of its tiles. A random operator of all members runs row by row, which costs some microseconds for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raygpu.training.torch.seeding import default_generator

Generators = dict[str, torch.Generator]
"""A member's generators by device type: `cpu`, and `cuda` if the model trains there."""
RANDOM = torch.Tag.nondeterministic_seeded
BERNOULLI, BERNOULLI_IN_PLACE = torch.ops.aten.bernoulli.p, torch.ops.aten.bernoulli_.float
NATIVE_DROPOUT = torch.ops.aten.native_dropout.default


Layout = tuple[int, ...]
"""Dimensions of a tensor by stride, the largest first: random numbers fill memory in order."""


@dataclass(frozen=True, slots=True)
class Draws:
    """The random operators of one model's step or evaluation on a batch, in their order."""

    layouts: tuple[Layout, ...] = ()
    """Layout of each operator's first tensor; empty for an operator without one."""
    in_place: bool = False
    """Whether any operator fills a tensor in place."""

    def __bool__(self) -> bool:
        return bool(self.layouts)


class DrawRecorder(TorchDispatchMode):
    """Records the operators that draw random numbers from torch's generators, while one model runs inside."""

    def __init__(self) -> None:
        super().__init__()
        self._layouts: list[Layout] = []
        self._in_place = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if RANDOM in func.tags:
            tensor = next((value for value in args if isinstance(value, torch.Tensor)), None)
            plain = tensor is None or func is BERNOULLI  # whose result is contiguous whatever its argument is
            self._layouts.append(() if plain else _layout(tensor))
            self._in_place = self._in_place or func._schema.is_mutable
        return func(*args, **(kwargs or {}))

    @property
    def draws(self) -> Draws:
        """The recorded operators."""
        return Draws(tuple(self._layouts), self._in_place)


def _layout(tensor: torch.Tensor) -> Layout:
    strides = torch.empty_like(tensor).stride()  # of an expanded tensor has none that are zero
    return tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))


class MemberStreams(TorchDispatchMode):
    """Random numbers inside a `torch.vmap` with `randomness="different"`: each row draws from generators of its own
    seed.

    seeds: one for each row of the mapped tensors. A generator begins as `torch.manual_seed(seed)` begins torch's own,
    and one operator's row draws as that operator draws alone. Raises RuntimeError for an operator whose rows cannot be
    told apart. Call `expect` before each step and evaluation.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device) -> None:
        super().__init__()
        self._layouts: Iterator[Layout] = iter(())
        devices = {"cpu": torch.device("cpu"), device.type: device}
        self._members: list[Generators] = [
            {kind: torch.Generator(where).manual_seed(seed) for kind, where in devices.items()} for seed in seeds
        ]
        self._turn = 0

    def expect(self, draws: Draws) -> MemberStreams:
        """Set the draws of the next step or evaluation, as recorded from a model alone; return this object."""
        self._layouts = iter(draws.layouts)
        return self

    def state(self) -> list[dict[str, torch.Tensor]]:
        """Return the states of all generators, for `set_state`."""
        return [{kind: each.get_state() for kind, each in generators.items()} for generators in self._members]

    def set_state(self, states: list[dict[str, torch.Tensor]]) -> None:
        """Restore the states of all generators, to draw the same numbers again."""
        self._turn = 0
        for generators, saved in zip(self._members, states, strict=True):
            for kind, each in generators.items():
                each.set_state(saved[kind])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if RANDOM not in func.tags:
            return func(*args, **(kwargs or {}))
        return self.drawn(func, args, kwargs or {})

    def drawn(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call a random operator for all members: each row is drawn from its member's generators."""
        if func.overloadpacket is torch.ops.aten.randperm:  # vmap calls it once for each row, in order
            if self._turn == 0:
                next(self._layouts, ())
            generators = self._members[self._turn]
            self._turn = (self._turn + 1) % len(self._members)
            return _drawn(func, args, kwargs, generators)
        if func is BERNOULLI:  # in its place vmap puts it where a model alone has the other one
            args, func = (
                [torch.empty_like(args[0], memory_format=torch.contiguous_format), *args[1:]],
                BERNOULLI_IN_PLACE,
            )
        layout = next(self._layouts, ())
        outputs = []
        for row, generators in enumerate(self._members):
            values = self._row_of(func, args, row)
            if func._schema.is_mutable:
                if _is_laid_out(values[0], layout):
                    _drawn(func, values, kwargs, generators)
                else:
                    values[0].copy_(_drawn(func, [_laid_out(values[0], layout), *values[1:]], kwargs, generators))
            else:
                values = [_laid_out(value, layout) if isinstance(value, torch.Tensor) else value for value in values]
                outputs.append(_drawn(func, values, kwargs, generators))
        if func._schema.is_mutable:
            return args[0]
        folded = _folding(args, len(self._members)) > 1
        if isinstance(outputs[0], tuple):
            return tuple(_together(list(parts), folded=folded) for parts in zip(*outputs, strict=True))
        return _together(outputs, folded=folded)

    def _row_of(self, func: Any, args: Sequence[Any], row: int) -> list[Any]:
        """Return one row's arguments: the row of tensors, and sizes without the first one."""
        width, rank = len(self._members), _rank(args)
        row_arguments = []
        for value in args:
            if isinstance(value, torch.Tensor) and value.dim() == rank:
                if rank == 0 or value.shape[0] % width:
                    raise RuntimeError(f"{func.overloadpacket} draws random numbers for all members at once")
                each = value.shape[0] // width
                row_arguments.append(value[row] if each == 1 else value[row * each : (row + 1) * each])
            elif isinstance(value, list | tuple) and value and all(isinstance(size, int) for size in value):
                if value[0] != width:
                    raise RuntimeError(f"{func.overloadpacket} draws random numbers for all members at once")
                row_arguments.append(list(value[1:]))
            else:
                row_arguments.append(value)
        return row_arguments


def _is_laid_out(tensor: torch.Tensor, layout: Layout) -> bool:
    """Return whether a tensor's memory has that order already, so that random numbers can fill it in place."""
    plain = len(layout) != tensor.dim() or layout == tuple(range(tensor.dim()))
    return plain and tensor.is_contiguous()


def _laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a copy with the memory order of a model alone; vmap chooses another one for some operators' results."""
    if len(layout) != tensor.dim():
        return tensor.clone(memory_format=torch.contiguous_format)
    back = [layout.index(dim) for dim in range(len(layout))]
    return tensor.permute(layout).clone(memory_format=torch.contiguous_format).permute(back)


def _rank(args: Sequence[Any]) -> int:
    """Return the number of dimensions of the tensor arguments with a row for each member; others are shared by all
    rows."""
    return max((value.dim() for value in args if isinstance(value, torch.Tensor)), default=0)


def _folding(args: Sequence[Any], width: int) -> int:
    """Return each member's number of rows in the first tensor: for some operators vmap folds a batch into them."""
    rank = _rank(args)
    return next((v.shape[0] // width for v in args if isinstance(v, torch.Tensor) and v.dim() == rank), 1)


def _together(parts: list[torch.Tensor], *, folded: bool) -> torch.Tensor:
    return torch.cat(parts) if folded else torch.stack(parts)


def _drawn(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], generators: Generators) -> Any:
    """Call a random operator with a member's generator."""
    tensor_device = next((value.device for value in args if isinstance(value, torch.Tensor)), None)
    device = torch.device(kwargs.get("device") or tensor_device or "cpu")
    generator = generators[device.type]
    if any(argument.name == "generator" for argument in func._schema.arguments):  # type: ignore[attr-defined]
        return func(*args, **{**kwargs, "generator": generator})
    default = default_generator(device)
    before = default.get_state()
    default.set_state(generator.get_state())
    try:
        return func(*args, **kwargs)
    finally:
        generator.set_state(default.get_state())
        default.set_state(before)
