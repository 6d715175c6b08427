"""The need of one more training: its memory, and the number at once up to which throughput gains.

Workers note it for `raygpu gpus`, so this imports nothing that is slow to load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raygpu.config.sections import Way
from raygpu.planning.scaling_laws import Affine

SAME_GIB = 0.1
"""Difference of two memories in GiB that rounding may make."""


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that one more training takes, and the number at once up to which throughput gains."""

    way: Way
    device: str
    """Name of the device that the profile was measured on."""
    device_gib: float | None
    """Memory of that device; None where one was simulated."""
    most: int | None
    """Largest number at once that gains; None where a single number was measured."""
    end: str
    """The end of the gain, as text: throughput peaks there, or no more were measured."""
    host_line: Affine | None
    """GiB of host memory of n trainings; None if not measured."""
    device_line: Affine | None
    """GiB of device memory of n trainings; None if not measured."""

    @classmethod
    def read(cls, values: dict[str, Any]) -> Need:
        """Return the need that `dataclasses.asdict` made these values of. Raises TypeError and KeyError."""
        lines = {name: values[name] and Affine(**values[name]) for name in ("host_line", "device_line")}
        return cls(**values | lines)

    def is_of(self, device: str, device_gib: float | None) -> bool:
        """Return whether the profile was measured on a device of this type. device_gib: None of a simulated one."""
        if self.device_gib is None or device_gib is None:
            return self.device == device and self.device_gib is device_gib
        return self.device == device and abs(self.device_gib - device_gib) <= SAME_GIB
