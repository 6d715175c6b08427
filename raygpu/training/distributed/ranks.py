"""The ranks of a training that is spread over devices, and its settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from raygpu.training.hyperparameters import OptimizerSettings


class Ranks(Protocol):
    """This process among those that train together. A rank is a device; most processes drive one."""

    rank: int
    """Rank of this process' first device."""
    local: int
    """Devices of this process."""
    world: int
    """Devices of all processes."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return each rank's value, by rank. All processes call it, and each waits.

        values: one for each rank of this process.
        """


class OneRank:
    """The single rank of a training on one device."""

    rank, local, world = 0, 1, 1

    def gather(self, values: Sequence[Any]) -> list[Any]:
        """Return the values as a list."""
        return list(values)


@dataclass(frozen=True, slots=True)
class ParallelSettings:
    """Settings of a training that is spread over devices."""

    global_batch: int
    """Samples of an optimizer step, on all devices together."""
    accumulate: int = 1
    """Parts in which a device takes its share of each batch, unless `micro_batch_size` asks for more."""
    ratios: tuple[float, ...] = ()
    """Ratios of the devices' shares; empty for equal ones."""
    auto_shares: bool = False
    """Whether the devices' speeds are measured, and the shares follow them."""
    compile: bool = False
    optimizer_settings: OptimizerSettings | None = None
    """Settings of the optimizer steps, with the learning rate scaled; None for the hyper-parameters' own."""
    least: int = 1
    """Smallest number of samples on which the model can be trained at once."""
    sharded: bool = False
    """Whether parameters, gradients and the optimizer's state are sharded over the ranks."""
    micro_parts: int = 1
    """Parts into which `micro_batch_size` cuts the largest share of a whole batch."""

    @property
    def num_parts(self) -> int:
        """Parts in which a device takes its share of a whole batch; a smaller batch may have fewer."""
        return max(self.accumulate, self.micro_parts)
