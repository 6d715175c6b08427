"""The folder in which this process began, and whether a cluster began it."""

from __future__ import annotations

import os
from pathlib import Path

BEGUN_IN = Path.cwd()
"""The working directory of this process, before anything changes it."""
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Variable that Ray gives the driver of a submitted job."""


def is_job() -> bool:
    """Whether this process is the driver of a submitted job: what came along with that, every worker has already."""
    return JOB_VARIABLE in os.environ
