"""The view of submitted jobs: a line each with status, start and duration."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from raygpu.cli.formatting import duration
from raygpu.config.command_names import typed
from raygpu.records.submitted_job import SubmittedJob


def lines(jobs: Sequence[SubmittedJob]) -> list[str]:
    """Return a line for each job, with their columns aligned."""
    width = max((len(job.job_id) for job in jobs), default=0)
    return [f"{job.job_id:<{width}}  {_state(job)}" for job in jobs]


def _state(job: SubmittedJob) -> str:
    if job.started is None:
        return job.status.lower()
    if job.is_lost:
        return f"{job.status.lower():<9}  its node was lost"
    took = duration(((job.ended or datetime.now(UTC)) - job.started).total_seconds())
    since = job.started.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return f"{job.status.lower():<9}  since {since}, {took}"


def hints(job_id: str, address: str) -> tuple[str, str]:
    """Return the lines that tell how to follow a job, and how to end it. address: of its cluster; empty for Slurm."""
    where = f" --address {address}" if address else ""
    follow, stop = (f"{typed('submit')} {verb} {job_id}{where}" for verb in ("logs -f", "stop"))
    return f"follow it: {follow}", f"end it: {stop}"
