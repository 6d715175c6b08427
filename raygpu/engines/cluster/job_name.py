"""The name of a run's Ray job, as Ray's dashboard lists it."""

from __future__ import annotations

from ray.job_config import JobConfig

JOB_NAME = "job_name"
"""Name of the metadata that the dashboard shows as a job's name."""


def named_job(name: str) -> JobConfig:
    """Return the configuration of a job of this name, for `ray.init`; of a job without one if it is empty."""
    return JobConfig(metadata={JOB_NAME: name} if name else {})
