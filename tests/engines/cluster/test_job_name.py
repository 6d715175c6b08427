"""Names of jobs on Ray's dashboard."""

from __future__ import annotations

from pathlib import Path

import ray
from ray import dashboard

from raygpu.engines.cluster.job_name import JOB_NAME, named_job


def test_a_job_has_its_name(ray_address: str) -> None:
    with ray.init(ray_address, job_config=named_job("sweep digits"), log_to_driver=False):
        found = ray._private.worker.global_worker.core_worker.get_job_config().metadata
    assert dict(found) == {JOB_NAME: "sweep digits"}


def test_without_a_name_there_is_no_metadata() -> None:
    assert named_job("").metadata == {}


def test_the_dashboard_shows_it() -> None:
    """No public API says by which name: this tells when a release changes it."""
    scripts = Path(dashboard.__file__).parent / "client" / "build" / "static" / "js"
    assert any(f".{JOB_NAME}" in path.read_text(errors="replace") for path in scripts.glob("main.*.js"))
