"""The service's Ray as the cluster of one command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raygpu.engines.cluster import orphan_processes, ray_files
from raygpu.engines.cluster.cluster import Cluster, head_answers, shutdown
from raygpu.records import scratch


@dataclass(slots=True, kw_only=True)
class ServiceCluster(Cluster):
    """A connection to the service's Ray, which lives on when it is closed."""

    mark: str
    """Mark of what the command's trials start."""
    give_back: Callable[[], None]
    """Gives the command's part of the GPUs back."""
    num_workers: int
    """Number of workers that were idle when the command came."""
    logs: Path

    def __post_init__(self) -> None:
        ray_files.use_logs(self.logs)

    def detail_lines(self) -> list[str]:
        """Return lines on the devices, and on where the logs of the service's Ray are."""
        return [*Cluster.detail_lines(self), f"service: {self.num_workers} workers were idle"]

    def close(self) -> None:
        """Disconnect from Ray, end what the command's trials have started, and give its GPUs back."""
        self.dashboard.close()
        try:
            if head_answers():
                shutdown()
        finally:
            orphan_processes.end_of([self.mark])
            self.give_back()
            ray_files.use_logs(None)
            with suppress(OSError):  # the next command deletes them
                scratch.delete_abandoned()
