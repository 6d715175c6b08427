"""The folders of a job on a node's disk: its own ones alone, and short enough for Ray."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from raygpu.engines.slurm.batch_script import NODE_DISK
from raygpu.engines.slurm.node_folders import (
    LONGEST_FOLDER,
    VARIABLE,
    delete_on_further_node,
    job_folder,
    make,
    ray_folder,
)

OWN = f"raygpu-{os.getuid()}-7"


@pytest.mark.parametrize("name", ["SLURM_TMPDIR", "TMPDIR"])
def test_the_script_names_a_folder_of_the_jobs_own(name: str, tmp_path: Path) -> None:
    """Whatever the site, or the user, has these variables name, as all of /scratch/me."""
    variables = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", name: str(tmp_path)}
    said = subprocess.run(
        ["bash", "-c", f'{NODE_DISK}; echo "${VARIABLE}"'], env=variables, capture_output=True, text=True
    )
    assert said.stdout.strip() == f"{tmp_path}/{OWN}"
    assert job_folder({"SLURM_JOB_ID": "7", VARIABLE: said.stdout.strip()}) == tmp_path / OWN


def test_another_folder_gets_one_below() -> None:
    assert job_folder({"SLURM_JOB_ID": "7", VARIABLE: "/scratch/me"}) == Path("/scratch/me", OWN)
    assert job_folder({"SLURM_JOB_ID": "7"}) == Path("/tmp", OWN)


def test_rays_folder_is_short_enough_for_its_sockets() -> None:
    assert ray_folder(Path("/tmp/d"), "12") == Path("/tmp/d/ray")
    assert len(str(ray_folder(Path("/localscratch/somebody-with-a-long-name.12345678.0"), "12"))) <= LONGEST_FOLDER


def test_a_further_node_is_emptied_and_a_disk_that_nodes_share_is_the_drivers(tmp_path: Path) -> None:
    own, ray, other = (tmp_path / name for name in ("own", "ray", "other"))
    for folder in (own / "env", ray / "session", other):
        folder.mkdir(parents=True)
    delete_on_further_node(own, ray)
    assert list(tmp_path.iterdir()) == [other]
    make(own, ray)
    delete_on_further_node(own, ray)
    assert own.exists()
    assert ray.exists()


def test_rays_short_folder_on_a_further_nodes_own_disk_is_deleted_where_the_other_one_is_shared(tmp_path: Path) -> None:
    shared, rays, here = (tmp_path / name for name in ("shared", "on_n1", "on_n2"))
    make(shared, rays)
    here.mkdir()
    delete_on_further_node(shared, here)
    assert sorted(tmp_path.iterdir()) == [rays, shared]
    make(shared, shared / "ray")
    delete_on_further_node(shared, shared / "ray")
    assert (shared / "ray").exists()
