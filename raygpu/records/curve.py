"""A trial's curve in a bounded number of points, for the console."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_POINTS = 96


@dataclass(slots=True)
class Curve:
    """Values in the order of epochs, every one at first; half as many whenever there are too many."""

    values: dict[int, float] = field(default_factory=dict)
    """Values by epoch."""
    newest: dict[int, float] = field(default_factory=dict)
    """The newest value by its epoch, whether it is one of `values` or not; empty without any."""
    _every: int = 1
    _count: int = 0

    def add(self, epoch: int, value: float) -> None:
        """Take in the value of an epoch after all of those before."""
        self.newest = {epoch: value}
        if self._count % self._every == 0:
            self.values[epoch] = value
            if len(self.values) > MOST_POINTS:
                self.values = dict(list(self.values.items())[::2])
                self._every *= 2
        self._count += 1

    def cut(self, epoch: int) -> None:
        """Drop the values after an epoch."""
        self.values, self.newest = (
            {index: value for index, value in values.items() if index <= epoch} for values in (self.values, self.newest)
        )
        self._count = len(self.values) * self._every

    def points(self) -> list[float]:
        """Return the values, with the newest one at the end."""
        return list((self.values | self.newest).values())
