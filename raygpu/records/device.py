"""A GPU as a sweep's records know it."""

from __future__ import annotations

from dataclasses import dataclass

SIMULATED = "one simulated GPU"
"""Name of the CPU where it stands in for a GPU."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of the sweep, or the simulated one."""

    index: int
    """Index over all nodes of the sweep."""
    node_id: str
    local_id: str
    """Ray's name of the device on its node: a number or a UUID."""
    name: str
    uuid: str | None = None
    memory_gib: float | None = None
    """Memory of the whole device."""
    rgu: float | None = None
    """Worth in Reference GPU Units; None if unknown."""
