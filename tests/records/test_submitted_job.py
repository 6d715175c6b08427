"""The exit code of a command that followed a job."""

from __future__ import annotations

import pytest

from raygpu.records.submitted_job import SubmittedJob


@pytest.mark.parametrize(
    ("status", "of_the_driver", "exit_code"),
    [
        ("SUCCEEDED", 0, 0),
        ("SUCCEEDED", None, 0),
        ("SUCCEEDED", 3, 3),  # MLflow lacks a part
        ("FAILED", 2, 2),
        ("FAILED", None, 1),
        ("STOPPED", 1, 130),
    ],
)
def test_it_is_the_jobs_own(status: str, of_the_driver: int | None, exit_code: int) -> None:
    job = SubmittedJob("sweep-one", status, "sweep", None, None, of_the_driver, "")
    assert job.exit_code == exit_code
