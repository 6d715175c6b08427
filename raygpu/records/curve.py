"""A trial's curve in a bounded number of points, for the console."""

from __future__ import annotations

from dataclasses import dataclass, field

MOST_POINTS = 96


@dataclass(slots=True)
class Curve:
    """Values in the order of epochs, every epoch at first; half as many whenever there are too many."""

    values: list[float] = field(default_factory=list)
    last: float | None = None
    """The newest value, whether it is one of `values` or not."""
    _every: int = 1
    _count: int = 0

    def add(self, value: float) -> None:
        """Take in the next epoch's value."""
        self.last = value
        if self._count % self._every == 0:
            self.values.append(value)
            if len(self.values) > MOST_POINTS:
                del self.values[1::2]
                self._every *= 2
        self._count += 1

    def cut(self, count: int) -> None:
        """Drop the values after the first `count`; the newest one is then the last that is left."""
        if count < self._count:
            del self.values[-(-count // self._every) :]
            self._count, self.last = count, self.values[-1] if self.values else None

    def points(self) -> list[float]:
        """Return the values, with the newest one at the end."""
        whole = self.last is None or (self._count - 1) % self._every == 0
        return list(self.values) if whole or self.last is None else [*self.values, self.last]
