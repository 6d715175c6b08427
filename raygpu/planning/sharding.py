"""The choice whether a training holds its model whole on each device, or sharded over them: pure.

Whole, a rank has parameters, their gradients, a copy of these in which they are summed, and the optimizer's buffers;
sharded, a part of all but that copy, and the parameters and gradients of the block that computes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Sharding = Literal["auto", "none", "full"]

MOST = 0.7
"""Share of a device's memory that the training state may fill; activations and the driver need the rest."""


@dataclass(frozen=True, slots=True)
class ParameterSize:
    """Size of a parameter of a model."""

    count: int
    """Number of its elements."""
    itemsize: int
    """Bytes of an element."""
    trains: bool = True


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Bytes of a model in training, without its activations."""

    parameters: int
    gradients: int
    sums: int
    """Bytes of the copies of gradients that are summed over the ranks."""
    buffers: int
    """Bytes of the optimizer's buffers."""
    largest: int
    """Bytes of the parameters that a sharded model gathers at once: those of its root, and of its largest block."""

    @classmethod
    def of(cls, parameters: Iterable[ParameterSize], *, num_buffers: int, largest: int) -> TrainingState:
        """Add up the bytes of a model. num_buffers: of the optimizer for each parameter. largest: see the field."""
        sizes = list(parameters)
        trained = sum(each.count * each.itemsize for each in sizes if each.trains)
        total_bytes = sum(each.count * each.itemsize for each in sizes)
        return cls(total_bytes, trained, trained, num_buffers * trained, largest)

    @property
    def whole(self) -> int:
        """Bytes on each rank that has all of the model."""
        return self.parameters + self.gradients + self.sums + self.buffers

    def sharded(self, ranks: int) -> int:
        """Return the bytes on each of so many ranks that has a part of the model."""
        parts = -(-(self.parameters + self.gradients + self.buffers) // ranks)
        return parts + 3 * self.largest  # gathered parameters, their gradients, and the message that sums these

    def fits(self, device_gib: float) -> bool:
        """Return whether all of the model leaves room on a device of this memory."""
        return self.whole <= MOST * device_gib * 2**30


@dataclass(frozen=True, slots=True)
class ShardingChoice:
    """Whether a model is sharded, and the reason."""

    sharded: bool
    line: str
    """Line for a person; empty where there is nothing to choose."""


def choose_sharding(
    setting: Sharding,
    state: TrainingState,
    ranks: int,
    device_gib: float | None,
    *,
    hindrance: str | None = None,
) -> ShardingChoice:
    """Choose whether to shard a model over so many ranks, by the memory of the smallest device.

    device_gib: of that device; None for the CPU, on which `auto` never shards. hindrance: the reason why this training
    cannot be sharded, if it cannot. Raises ValueError for `full` with a hindrance.
    """
    sizes = f"{_gib(state.whole)} of parameters, gradients and optimizer state on each device"
    parts = f"{_gib(state.sharded(ranks))} if sharded over {ranks}"
    if setting == "none" or ranks == 1:
        line = "sharding: one device has nothing to share" if setting == "full" else ""
        return ShardingChoice(False, line)
    if setting == "full":
        if hindrance is not None:
            raise ValueError(hindrance)
        return ShardingChoice(True, f"sharding: full, as configured; {sizes}, {parts}")
    if device_gib is None:
        return ShardingChoice(False, "")
    room = f"the smallest has {device_gib:.1f} GiB"
    if state.fits(device_gib):
        return ShardingChoice(False, f"sharding: none; {sizes}, {parts}; {room}")
    if hindrance is not None:
        return ShardingChoice(False, f"sharding: none, although {sizes} leave little room ({room}): {hindrance}")
    tight = "" if state.sharded(ranks) <= MOST * device_gib * 2**30 else ", which leaves little room too"
    return ShardingChoice(True, f"sharding: full; {sizes} leave little room ({room}), {parts}{tight}")


def _gib(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**27 else f"{count / 2**20:.3g} MiB"
