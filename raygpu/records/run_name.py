"""The name of a run that a person has not named."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from pathlib import Path

from raygpu.records import scratch, slurm_job

TAKEN = "name-{}"
"""File, in the folder of a process' temporary files, of a name that it is about to take; its end is a digest."""


def automatic_name(runs_dir: Path, stem: str) -> str:
    """Return a name of a stem and the time, with a number where the folder exists, or where another process of this
    user on this machine is about to make it: a run gets its folder only once it is planned."""
    begun = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (begun if number == 1 else f"{begun}-{number}" for number in itertools.count(1))
    free = (name for name in names if not slurm_job.is_taken(runs_dir / name))
    try:
        home = scratch.home()
        with scratch.locked(scratch.shared_folder()):
            others = [folder for pid, folder in scratch.living().items() if pid != os.getpid()]
            for name in free:
                file = TAKEN.format(hashlib.sha256(os.fsencode(runs_dir / name)).hexdigest())
                if not any((folder / file).exists() for folder in others):
                    (home / file).touch()
                    return name
    except OSError:  # no folder for temporary files
        pass
    return next(free)
