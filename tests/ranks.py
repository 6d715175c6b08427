"""`on_ranks` and `on_keras_ranks` in processes that stay for the next test: their start is the slowest part."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from experiments.benchmarks.ranks import Group

_torch, _keras = cache(Group.torch), cache(Group.keras)


def on_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """`function(ranks, *arguments)` in each of `world` processes, with TorchRanks; what they returned, by rank."""
    try:
        return _torch(world).run(function, *arguments)
    except RuntimeError:
        _torch.cache_clear()
        raise


def on_keras_ranks(world: int, function: Callable[..., Any], *arguments: Any, local: int = 1) -> list[Any]:
    """As `on_ranks`, with KerasRanks, and float32. local: logical devices of each process."""
    try:
        return _keras(world, local).run(_in_float32, function, *arguments)
    except RuntimeError:
        _keras.cache_clear()
        raise


class StayingGroup:
    """Takes the place of `Group` in a study: its processes stay for the next test."""

    def __init__(self, on_these: Callable[..., list[Any]]) -> None:
        self.run = on_these

    @classmethod
    def torch(cls, world: int) -> StayingGroup:
        return cls(partial(on_ranks, world))

    @classmethod
    def keras(cls, world: int, local: int = 1) -> StayingGroup:
        return cls(partial(on_keras_ranks, world, local=local))

    def close(self) -> None: ...


def _in_float32(ranks: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the function as a new process would, whatever the one before has set."""
    compute_in("float32")
    return function(ranks, *arguments)


def compute_in(dtype: str) -> None:
    """Make Keras models of this process compute in a dtype: its policy keeps the one that was first asked for."""
    from raygpu.training.keras.quiet_import import keras

    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
