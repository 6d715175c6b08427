"""Leases of a service's GPUs: each command takes at most its part, and later commands get what is left.

leases = GpuLeases(num_gpus=2)
leases.ask(1, GpuRequest("sweep digits", most=Fraction(1)))     # Fraction(1): granted
leases.ask(2, GpuRequest("sweep cifar"))                        # Fraction(1): what is left
leases.ask(3, GpuRequest("train digits"))                       # None: it waits, in the order of asking
leases.leave(1)                                           # [(3, Fraction(1))]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The part of all GPUs that a command asks for."""

    what: str
    """Command and name of its run."""
    most: Fraction | None = None
    """Largest number of GPUs; None for all."""
    least: Fraction | None = None
    """Smallest number that is of use; None for any."""
    whole: bool = False
    """Whether it measures, and so wants all GPUs for itself."""

    def as_json(self) -> dict[str, Any]:
        """Return the request as a value of JSON."""
        parts = {"most": self.most, "least": self.least}
        numbers = {name: None if part is None else str(part) for name, part in parts.items()}
        return {"what": self.what, "whole": self.whole, **numbers}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> GpuRequest:
        """Return the request that was sent. Raises ValueError or KeyError for anything else."""
        most, least = (None if value[name] is None else Fraction(value[name]) for name in ("most", "least"))
        return cls(str(value["what"])[:200], most, least, bool(value["whole"]))


class GpuLeases:
    """The parts of a service's GPUs that are taken, and the commands that wait for one."""

    def __init__(self, num_gpus: int) -> None:
        self.num_gpus = num_gpus
        self.taken: dict[int, tuple[GpuRequest, Fraction]] = {}
        """Request and granted part, by the number of the command."""
        self.waiting: dict[int, GpuRequest] = {}
        """Requests in the order in which they came."""

    @property
    def free(self) -> Fraction:
        """Return the number of GPUs that nobody has taken."""
        return self.num_gpus - sum((part for _, part in self.taken.values()), Fraction(0))

    def ask(self, who: int, request: GpuRequest) -> Fraction | None:
        """Return the part that a command gets, or None if it has to wait: an earlier one waits, or too little is
        left."""
        part = None if self.waiting else self._part(request)
        if part is None:
            self.waiting[who] = request
        else:
            self.taken[who] = request, part
        return part

    def leave(self, who: int) -> list[tuple[int, Fraction]]:
        """Remove a command that has ended or that waits no more; return those that now get a part, with it."""
        self.taken.pop(who, None)
        self.waiting.pop(who, None)
        granted = []
        for waiting, request in list(self.waiting.items()):
            part = self._part(request)
            if part is None:
                break  # in order: a small request that overtakes would let a large one wait for ever
            del self.waiting[waiting]
            self.taken[waiting] = request, part
            granted.append((waiting, part))
        return granted

    def line(self) -> str:
        """Return a line with the number of free GPUs, and the part of each command."""
        users = [f"{request.what} {float(part):g}" for request, part in self.taken.values()]
        return f"{float(self.free):g} of {self.num_gpus} GPU{'s' if self.num_gpus != 1 else ''} free" + (
            f"; {', '.join(users)}" if users else ""
        )

    def _part(self, request: GpuRequest) -> Fraction | None:
        wanted = Fraction(self.num_gpus) if request.most is None else min(request.most, Fraction(self.num_gpus))
        least = wanted if request.whole else min(request.least or Fraction(0), wanted)
        part = min(wanted, self.free)
        return part if part > 0 and part >= least else None
