"""The choice of a trial's device type: where a place is free, the faster type first. Pure."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Any

from raygpu.planning.gpu_shares import Plan

STAGED = 2
"""Trials for each place of a busy type: one that runs, and one that waits, for which its worker is kept."""


class DeviceSlots:
    """Trials that were given to each type of a plan's, and whether it has room for more."""

    def __init__(self, plan: Plan) -> None:
        self._num_gpus = {part.device: part.num_gpus for part in plan.parts}
        self.slots = sum(part.num_gpus / part.share.part for part in plan.parts)
        """Trials of the plan's shares that run at once."""
        self._most = plan.most_gpus
        self._held: dict[str, tuple[str, Fraction]] = {}
        """The type and the share of it, by what holds it."""

    @property
    def devices(self) -> list[str]:
        """The types, the fastest first."""
        return list(self._num_gpus)

    def choose(self, fitting: Collection[str], part: dict[str, Fraction], *, staging: bool) -> str | None:
        """The type for one more trial; None if it has to wait.

        fitting: the types that it may go to. part: of a GPU that it takes, by type. staging: whether it may be given to
        a type that has no place free: so many trials are left that every place has another one.
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

    def has_room(self, part: Fraction) -> bool:
        """Whether what may be reserved at once has room for this part of a GPU."""
        return self._most is None or sum(held for _, held in self._held.values()) + part <= self._most

    def take(self, holder: str, device: str, part: Fraction) -> None:
        self._held[holder] = device, part

    def give_back(self, holder: str) -> str | None:
        """The type that it held a share of."""
        device, _ = self._held.pop(holder, (None, None))
        return device

    def _load(self, device: str) -> Fraction:
        return sum((part for of, part in self._held.values() if of == device), Fraction(0))

    def state(self) -> Any:
        """For a resumed sweep; picklable."""
        return dict(self._held)

    def restore(self, state: Any) -> None:
        self._held = dict(state)
