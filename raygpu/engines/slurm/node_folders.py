"""The folders of a Slurm job on a node's own disk: one for its files, and one for Ray's, whose paths have to be short.

They are deleted with the job, so that both have names of the job's own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "RAYGPU_NODE_DISK"
"""Variable in which the batch script names the job's folder."""
LONGEST_FOLDER = 36
"""Longest path of Ray's folder: with its sockets' names it has to stay below 107 bytes."""

OF_DRIVER = "driver"
"""File by which each folder on the driver's own node is known."""


def job_folder(variables: Mapping[str, str]) -> Path:
    """Return the folder of a job's files, by the environment of its batch script.

    Where the variable names another folder than one of the job's own, as $SLURM_TMPDIR itself, it is one below.
    """
    name = f"raygpu-{os.getuid()}-{variables['SLURM_JOB_ID']}"
    folder = Path(variables.get(VARIABLE) or "/tmp")
    return folder if folder.name == name else folder / name


def ray_folder(own_folder: Path, job: str) -> Path:
    """Return a folder for Ray on the node's disk, short enough for its sockets. own_folder: of the job's files."""
    folder = own_folder / "ray"
    return folder if len(str(folder)) <= LONGEST_FOLDER else Path(f"/tmp/rg-{os.getuid()}-{job}")


def make(own_folder: Path, ray_folder: Path) -> None:
    """Make both folders on the node of the job's driver. Raises OSError."""
    for folder in (own_folder, ray_folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / OF_DRIVER).touch()


def delete(*folders: Path) -> None:
    """Delete what a job has left on this node's disk."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def delete_on_further_node(own_folder: Path, ray_folder: Path) -> None:
    """Delete what a job has left on another node than its driver's; nothing of a disk that the nodes share.

    They may share that of one folder, and each have the other.
    """
    delete(*[folder for folder in (own_folder, ray_folder) if not (folder / OF_DRIVER).exists()])
