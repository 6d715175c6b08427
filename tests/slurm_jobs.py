"""A Slurm job's variables and folders in a process of the tests; no Slurm is there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from raygpu.workflow import slurm_run


def within_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process part of job number 7 on this machine; return the folder of its run, which is not there yet."""
    for name in [name for name in os.environ if name.startswith(("SLURM_", "RAYGPU_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n1")
    monkeypatch.setenv("RAYGPU_NODE_DISK", str(tmp_path / "disk"))
    monkeypatch.setattr(slurm_run.node_folders, "ray_folder", lambda folder, job: tmp_path / f"rg-{job}")
    return tmp_path / "runs" / "night"
