"""Choose the device type of each trial: the fastest type with a free slot. Pure, without Ray."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Any

from raygpu.planning.gpu_shares import Plan

STAGED = 2
"""Trials for each slot of a busy type: one that runs, and one that waits, so that the slot's worker is kept."""


class DeviceSlots:
    """Slots of a plan's device types: the shares that trials hold, and the room for more."""

    def __init__(self, plan: Plan) -> None:
        self._num_gpus = {part.device: part.num_gpus for part in plan.parts}
        self.slots = sum(part.num_gpus / part.share.part for part in plan.parts)
        """Number of trials with the plan's shares that run at once."""
        self._most = plan.most_gpus
        self._held: dict[str, tuple[str, Fraction]] = {}
        """Device type and part of a GPU that each holder has."""

    @property
    def devices(self) -> list[str]:
        """Return the device types, the fastest first."""
        return list(self._num_gpus)

    def choose(self, fitting: Collection[str], part: dict[str, Fraction], *, staging: bool) -> str | None:
        """Return the device type for one more trial; None if the trial has to wait.

        fitting: device types allowed for the trial. part: part of a GPU that it takes, by type. staging: whether the
        trial may wait for a type without a free slot, since enough trials are left for every slot.
        """
        fitting = [device for device in fitting if self.has_room(part[device])]
        if not fitting:
            return None
        if len(self._num_gpus) == 1:
            return next(iter(self._num_gpus))
        load = {
            device: (self._load(device) + part[device]) / self._num_gpus[device]
            for device in self._num_gpus
            if device in fitting
        }
        free = next((device for device, after in load.items() if after <= 1), None)
        if free is not None or not staging:
            return free
        least = min(load, key=lambda device: load[device])
        return least if load[least] <= STAGED else None

    def is_any_free(self, parts: Mapping[str, Fraction]) -> bool:
        """Return whether a device type has a free slot. parts: part of a GPU that one more trial takes, by type."""
        return any(
            self.has_room(part) and self._load(device) + part <= self._num_gpus[device]
            for device, part in parts.items()
        )

    def has_room(self, part: Fraction) -> bool:
        """Return whether the limit on reserved GPUs has room for this part of a GPU."""
        return self._most is None or sum(reserved_part for _, reserved_part in self._held.values()) + part <= self._most

    def take(self, holder: str, device: str, part: Fraction) -> None:
        """Note that a holder, a Tune trial's id, has this part of a GPU of this type."""
        self._held[holder] = device, part

    def give_back(self, holder: str) -> str | None:
        """Free the part of a GPU that a holder had; return its device type, or None if it had none."""
        device, _ = self._held.pop(holder, (None, None))
        return device

    def _load(self, device: str) -> Fraction:
        return sum((part for of, part in self._held.values() if of == device), Fraction(0))

    def state(self) -> Any:
        """Return the held parts for a resumed sweep; picklable."""
        return dict(self._held)

    def restore(self, state: Any) -> None:
        """Go on from a value that `state` returned."""
        self._held = dict(state)
