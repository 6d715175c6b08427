"""A command submitted to a Ray cluster, and the state of its job there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

ENDED = ("STOPPED", "SUCCEEDED", "FAILED")


@dataclass(frozen=True, slots=True)
class Submission:
    """A raygpu command to run as a job."""

    command: str
    """sweep, pack, train or balance."""
    name: str
    argv: Sequence[str]
    """Arguments of the command, without the configuration."""
    source_folder: Path
    """Folder that becomes the working directory of the job and of every worker."""
    config: Path | None = None
    """Configuration file that is sent with the job; None for none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job and its workers; hidden from everybody who cannot read the job's package."""
    requirements: Sequence[str] = ()
    """Python packages that the nodes install first."""
    num_gpus: float = 0
    """GPUs of the driver itself."""


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """State of a job, as the cluster reports it."""

    job_id: str
    status: str
    """Ray's own word, such as RUNNING."""
    command: str
    """raygpu's command; empty for a job that raygpu did not submit."""
    started: datetime | None
    ended: datetime | None
    driver_exit_code: int | None
    """Exit code of the job's driver; None until it has ended."""
    message: str
    is_lost: bool = False
    """Whether the driver's node is gone, and the job's output with it."""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status in ENDED

    @property
    def exit_code(self) -> int:
        """Exit code of a command that followed the job to its end: the driver's, or 130 if the job was stopped.

        A job that has succeeded may have another code than 0, as 3 where MLflow lacks a part.
        """
        if self.status == "SUCCEEDED":
            return self.driver_exit_code or 0
        return 130 if self.status == "STOPPED" else self.driver_exit_code or 1


class SubmittedJobs(Protocol):
    """The jobs of a Ray cluster, or those of Slurm."""

    address: str
    """Address of the cluster's dashboard; empty for Slurm."""

    def job(self, job_id: str) -> SubmittedJob:
        """Return the state of a job."""

    def all(self) -> list[SubmittedJob]:
        """Return the jobs that raygpu submitted, the newest first."""

    def stop(self, job_id: str) -> SubmittedJob | None:
        """Ask a job to end, as Ctrl-C does; return its state if it is known to have ended."""

    def logs(self, job_id: str) -> str:
        """Return the whole output of a job so far."""

    def follow(self, job_id: str, write: Callable[[str], Any]) -> SubmittedJob:
        """Write a job's output until it ends; return its last state."""
