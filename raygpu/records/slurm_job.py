"""Note of a run's Slurm job in its folder, and the place of the folders of submitted jobs.

    runs/NAME/slurm/job.sh      the batch script
    runs/NAME/slurm/job.json    this record: written at the submission, and by the job at each start and end
    runs/NAME/slurm/job.out     all that the job has printed
    runs/NAME/slurm/nodes.log   output of Ray's start on several nodes

Slurm forgets a job minutes after its end, so the record outlives it. A list of the folders lies in the user's cache
folder, since runs may be anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from raygpu.records.cache_folder import cache_folder
from raygpu.records.whole_files import write_whole

FOLDER = "slurm"
"""Folder of the job's files below the run's."""
SCRIPT = f"{FOLDER}/job.sh"
RECORD = f"{FOLDER}/job.json"
LOG = f"{FOLDER}/job.out"
NODES_LOG = f"{FOLDER}/nodes.log"
QUEUED_AGAIN = "is queued again"
"""Message of a job from the end of a start on that it does not stay with, to its next start."""
VARIABLE = "RAYGPU_SUBMITTED"
"""Variable by which a job tells its command the folder that was made for it at the submission."""
SEED_OFFSET = "RAYGPU_SEED_OFFSET"
"""Variable by which a job of an array tells its training the number to add to the seed of the sweep's trial."""


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A submitted job and its course so far."""

    job_id: str
    """COMMAND-NAME."""
    command: str
    slurm_id: str
    """Slurm's id, 12, or 12_3 for a job of an array."""
    folder: str
    """The run's folder."""
    submitted: float
    """Time of the submission, in seconds since 1970."""
    script: str = ""
    store: str = ""
    """SQLite file of MLflow on the shared file system; empty for another store, or none."""
    started: float | None = None
    """Time of the first start."""
    ended: float | None = None
    """Time of the last end; None while it runs or waits."""
    exit_code: int | None = None
    """Exit code of the command; None until the job has ended for good."""
    restarts: int = 0
    """Number of times that it was queued again."""
    message: str = ""
    nodes: str = ""
    progress: list[float] = field(default_factory=list)
    """Amount of results at the end of each start, by which a run that gets nowhere is noticed."""
    seconds: float = 0.0
    """Seconds of all earlier starts together."""
    seconds_before: float | None = None
    """Seconds of the starts before the script was submitted, or sbatched by hand, the last time; None if no start has
    noted it yet."""
    rgu_hours: float | None = None
    """RGU-hours of all starts so far; None without GPUs of known worth."""

    def write(self, **values: Any) -> SlurmJob:
        """Change these fields here and on disk, in one step, and return the record."""
        changed = replace(self, **values)
        path = Path(self.folder, RECORD)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(asdict(changed), indent=2))
        return changed


def is_on_several_nodes() -> bool:
    """Return whether this process belongs to a submitted job over several nodes, which has a Ray of its own on them."""
    return VARIABLE in os.environ and os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1"


def log_of(folder: Path) -> Path:
    """Return the file of a job's output."""
    return folder / LOG


def read(folder: Path) -> SlurmJob | None:
    """Return the record in a run's folder; None without one, or of a damaged one."""
    field_names = {each.name for each in fields(SlurmJob)}
    try:
        values = json.loads((folder / RECORD).read_text())
        job = SlurmJob(**{name: value for name, value in values.items() if name in field_names})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return replace(job, folder=str(folder))


def has_job_alone(folder: Path) -> bool:
    """Return whether a run's folder holds a submitted job, and nothing of a run yet."""
    return (
        folder.is_dir() and {each.name for each in folder.iterdir()} <= {FOLDER, ".lock"} and (folder / FOLDER).is_dir()
    )


def script_of(folder: Path) -> str | None:
    """Return the batch script of a run, in the job that runs it; None elsewhere, and in an array of jobs."""
    if os.environ.get(VARIABLE) != str(folder) or "SLURM_ARRAY_JOB_ID" in os.environ:
        return None
    job = read(folder)
    return job.script or None if job is not None else None


def number_of(folder: Path) -> str | None:
    """Return Slurm's number of the job that runs a run, the same at all of its starts; None elsewhere."""
    return os.environ.get("SLURM_JOB_ID") if _runs_here(folder) else None


def used_s(folder: Path) -> float:
    """Return the seconds that the job which runs a run has used since it was submitted, without this start; 0
    elsewhere."""
    job = read(folder) if _runs_here(folder) else None
    return job.seconds - job.seconds_before if job is not None and job.seconds_before is not None else 0.0


def _runs_here(folder: Path) -> bool:
    """Return whether this process is the command of the job that runs a run."""
    named = os.environ.get(VARIABLE)
    return named is not None and Path(named).resolve() == folder.resolve()


def is_taken(folder: Path) -> bool:
    """Return whether a new run cannot have this folder: it is there, and was not made for this job's run."""
    was_made = os.environ.get(VARIABLE) == str(folder.resolve()) and has_job_alone(folder)
    return folder.exists() and not was_made


def delete_run(folder: Path) -> None:
    """Delete a run's folder; of one that belongs to a Slurm job, all but the job's files."""
    if not (folder / FOLDER).is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for each in folder.iterdir():
        if each.name == FOLDER:
            continue
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each, ignore_errors=True)
        else:
            with suppress(OSError):
                each.unlink()


def registry() -> Path:
    """Return the folder with a file for each submitted job. Raises BadInput without a cache folder."""
    return cache_folder() / "slurm"


def register(folder: Path) -> None:
    """Note the folder of a submitted job, in one step."""
    entry = _entry(folder)
    if entry.exists():
        return
    entry.parent.mkdir(parents=True, exist_ok=True)
    write_whole(entry, str(folder))


def submitted() -> Iterator[SlurmJob]:
    """Yield the submitted jobs whose folders are still there, the newest first."""
    jobs = []
    entries = registry().iterdir() if registry().is_dir() else ()
    for entry in (each for each in entries if not each.name.startswith(".")):
        with suppress(OSError):
            folder = Path(entry.read_text().strip())
            if (job := read(folder)) is not None:
                jobs.append(job)
            elif not folder.exists():
                entry.unlink()
    yield from sorted(jobs, key=lambda job: job.submitted, reverse=True)


def _entry(folder: Path) -> Path:
    return registry() / hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:20]
