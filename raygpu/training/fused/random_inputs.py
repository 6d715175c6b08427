"""Random numbers as inputs of a step, for a compiled step and a CUDA graph: neither can ask the members' generators.

random_inputs = RandomInputs.of(run, streams)   # runs it once, and records its random operators
drawn = random_inputs.draw(streams)             # before each step: the numbers that it would draw
with RandomInputs.supplied(drawn):              # in place of drawing
    step()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from raygpu.training.fused.member_generators import NATIVE_DROPOUT, RANDOM, MemberStreams

aten = torch.ops.aten
INDEPENDENT = {
    *(aten.bernoulli.p, aten.bernoulli_.float, NATIVE_DROPOUT, aten.randperm.default, aten.randperm.generator),
    *(aten.uniform_.default, aten.normal_.default, aten.exponential_.default, aten.geometric_.default),
    *(aten.cauchy_.default, aten.log_normal_.default),
    *(aten.random_.default, aten.random_.to, getattr(aten.random_, "from")),
    *(aten.rand.default, aten.rand_like.default, aten.randn.default, aten.randn_like.default),
    *(aten.randint.default, aten.randint.low, aten.randint_like.default, aten.randint_like.low_dtype),
}
"""Operators whose numbers depend on shapes and constants alone, so that they can be drawn before the step."""

Call = tuple[Any, list[Any], Mapping[str, Any]]
"""An operator and its arguments, each tensor replaced by one of the same shape that takes no memory."""


class RandomInputs:
    """Random numbers of all members' step, drawn before it. calls: the step's random operators, in order."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    @classmethod
    def of(cls, run: Callable[[], Any], streams: MemberStreams) -> RandomInputs:
        """Record the random operators of `run`. The streams have to be ready for it, and are left in their earlier
        state.

        Raises ValueError for an operator whose numbers depend on a tensor's values, such as `torch.bernoulli(p)`.
        """
        before = streams.state()
        recorder = _Recorder()
        with streams, recorder:
            run()
        streams.set_state(before)
        return cls(recorder.calls)

    def draw(self, streams: MemberStreams) -> list[torch.Tensor]:
        """Draw the numbers of the step that the streams expect: of native dropout the mask, of others their result."""
        random_numbers = []
        for func, shapes, kwargs in self._calls:
            args = shapes
            if func._schema.is_mutable:
                args = [torch.empty_like(shapes[0], memory_format=torch.contiguous_format), *shapes[1:]]
            drawn = streams.drawn(func, args, kwargs)
            random_numbers.append(drawn[1] if func is NATIVE_DROPOUT else drawn)
        return random_numbers

    @staticmethod
    def supplied(drawn: Sequence[torch.Tensor]) -> TorchDispatchMode:
        """Return a mode in which random operators return these numbers instead of drawing."""
        return _Supplied(drawn)


def traced(step: Callable[..., torch.Tensor], arguments: Sequence[Any]) -> Callable[..., torch.Tensor]:
    """Trace a step into a graph of operators, for arguments of the same shapes. The step is not run."""
    from torch.fx.experimental.proxy_tensor import make_fx

    graph: Callable[..., torch.Tensor] = make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
    return graph


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if RANDOM in func.tags:
            if func not in INDEPENDENT:
                raise ValueError(f"{func.overloadpacket} draws random numbers that depend on a tensor's values")
            shapes = [_of_shape(value) if isinstance(value, torch.Tensor) else value for value in args]
            self.calls.append((func, shapes, kwargs))
        return func(*args, **kwargs)


class _Supplied(TorchDispatchMode):
    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = iter(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if RANDOM not in func.tags:
            return func(*args, **(kwargs or {}))
        number = next(self._tensors)
        if func is NATIVE_DROPOUT:
            dropped = args[1]
            return (args[0] * number) * (0.0 if dropped == 1 else 1 / (1 - dropped)), number.clone()
        return args[0].copy_(number) if func._schema.is_mutable else number.clone()


def _of_shape(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of ones of the same shape that takes no memory."""
    return tensor.new_ones(()).expand(tensor.shape)
