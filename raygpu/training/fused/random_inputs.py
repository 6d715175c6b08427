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
"""An operator and its arguments, tensors replaced by others of the same shape."""


class RandomInputs:
    """Random numbers of all members' step, drawn before it.

    calls: the step's random operators, in order. The numbers are in the same tensors for each step, as a CUDA graph
    needs it.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls
        self._tensors: list[torch.Tensor] = []

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
        """Draw the numbers of the step that the streams expect. The tensors hold them until the next call."""
        drawn = [number for call in self._calls for number in _tensors(streams.drawn(*call))]
        if not self._tensors:
            self._tensors = [number.clone() for number in drawn]
        else:
            for into, number in zip(self._tensors, drawn, strict=True):
                into.copy_(number)
        return self._tensors

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
            of_shape = torch.ones_like if func is NATIVE_DROPOUT else torch.empty_like
            shapes = [of_shape(value) if isinstance(value, torch.Tensor) else value for value in args]
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
        if func is NATIVE_DROPOUT:  # of ones: the kept ones, scaled, and the mask
            return args[0] * number, next(self._tensors)
        return args[0].copy_(number) if func._schema.is_mutable else number


def _tensors(drawn: Any) -> Sequence[torch.Tensor]:
    return drawn if isinstance(drawn, tuple) else (drawn,)
