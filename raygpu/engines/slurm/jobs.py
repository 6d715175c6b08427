"""The jobs that raygpu submitted to Slurm, with the methods of a Ray cluster's (`engines/cluster/jobs.py`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raygpu.config.slurm_section import tasks
from raygpu.engines.slurm import answers, door
from raygpu.engines.slurm.answers import State
from raygpu.engines.slurm.batch_script import BatchJob, script
from raygpu.errors import BadInput, RaygpuError
from raygpu.records import slurm_job
from raygpu.records.slurm_job import SCRIPT, SlurmJob
from raygpu.records.submitted_job import SubmittedJob

LOOK_S = 0.5
"""Seconds between two looks at a job's output."""
ASK_S = 20.0
"""Seconds between two questions to Slurm, which many people ask."""
LAST_S = 2.0
"""Seconds for which the output of a job that has ended may still come."""


class SlurmJobs:
    """The jobs of this user. Methods raise BadInput where Slurm refuses, and RaygpuError where it does not answer."""

    address = ""
    """Empty: Slurm's commands find their cluster."""

    def submit(self, job: BatchJob, store: str, say: Callable[[str], None]) -> list[str]:
        """Write the script, submit it, and return the job's id, or one for each job of an array.

        store: SQLite file of MLflow; empty for none. say: takes sbatch's lines.
        """
        array = job.slurm.array
        folders = [job.folder] if array is None else [Path(f"{job.folder}-{index}") for index in tasks(array)]
        made = [folder for folder in dict.fromkeys([job.folder, *folders]) if not folder.exists()]
        path = job.folder / SCRIPT
        try:
            for folder in [job.folder, *folders]:
                (folder / slurm_job.FOLDER).mkdir(parents=True, exist_ok=True)
            path.write_text(script(job))
            path.chmod(0o755)
        except OSError as error:
            raise BadInput(f"runs_dir: {path.parent} cannot be written: {error.strerror}") from error
        try:
            number, lines = door.submit(path)
        except BaseException:
            _remove(path, made)
            raise
        for line in lines:
            say(line)
        found = []
        for place, folder in enumerate(folders):
            suffix = f"_{tasks(array)[place]}" if array is not None else ""
            earlier = slurm_job.read(folder)
            record = SlurmJob(
                job_id=f"{job.command}-{folder.name}",
                command=job.command,
                slurm_id=number + suffix,
                folder=str(folder),
                submitted=time.time(),
                script=str(path),
                store=store,
                seconds=earlier.seconds if earlier is not None else 0.0,
                rgu_hours=earlier.rgu_hours if earlier is not None else None,
            )
            if earlier is None or earlier.slurm_id != record.slurm_id:  # else the job has begun already
                record.write()
            slurm_job.register(folder)
            found.append(record.job_id)
        return found

    def record(self, job_id: str) -> SlurmJob:
        """Return the record of a job by its id, COMMAND-NAME, or Slurm's number. Raises BadInput."""
        for record in slurm_job.submitted():
            if job_id in (record.job_id, record.slurm_id):
                return record
        raise BadInput(f"read {job_id!r}; no such job was submitted to Slurm from here: list shows them")

    def has(self, job_id: str) -> bool:
        """Return whether a job of this id was submitted to Slurm."""
        return any(job_id in (record.job_id, record.slurm_id) for record in slurm_job.submitted())

    def job(self, job_id: str) -> SubmittedJob:
        """Return the state of a job."""
        record = self.record(job_id)
        return answers.submitted_job(record, self._state(record))

    def all(self) -> list[SubmittedJob]:
        """Return the submitted jobs whose run folders are still there, the newest first."""
        records = list(slurm_job.submitted())
        live = door.queue() if any(record.exit_code is None for record in records) else {}
        return [answers.submitted_job(record, live.get(record.slurm_id) or self._state(record)) for record in records]

    def stop(self, job_id: str) -> None:
        """Ask a job to end, as Ctrl-C does; take one that waits out of the queue."""
        record = self.record(job_id)
        state = self._state(record)
        if state is None or not state.is_live:
            return
        if state.word in answers.PENDING:
            door.cancel(record.slurm_id)
            record.write(exit_code=130, ended=time.time(), message="before it ran, or between two starts")
        else:
            door.signal(record.slurm_id, "INT")

    def logs(self, job_id: str) -> str:
        """Return the whole output of a job so far."""
        try:
            return slurm_job.log_of(Path(self.record(job_id).folder)).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def follow(self, job_id: str, write: Callable[[str], Any]) -> SubmittedJob:
        """Write a job's output, from its first line on, until the job ends for good; return its last state."""
        log = slurm_job.log_of(Path(self.record(job_id).folder))
        place, asked, waiting = 0, 0.0, ""
        while True:
            place = _more(log, place, write)
            record = self.record(job_id)
            if record.exit_code is not None:
                time.sleep(LAST_S)
                _more(log, place, write)
                return answers.submitted_job(record, None)
            if time.monotonic() - asked >= ASK_S:
                try:
                    job = self.job(job_id)
                except RaygpuError as error:
                    if isinstance(error, BadInput):
                        raise
                    job = None  # a busy Slurm; it is asked again
                asked = time.monotonic()
                if job is not None and job.is_over:
                    time.sleep(LAST_S)
                    _more(log, place, write)
                    return self.job(job_id)
                if job is not None and job.status == "PENDING" and job.message != waiting:
                    waiting = job.message
                    write(f"{waiting}\n")
            time.sleep(LOOK_S)

    def waits_in_vain(self, job_ids: list[str]) -> list[str]:
        """Return a line for each reason for which Slurm will never start these jobs."""
        live = door.queue()
        numbers = [self.record(job_id).slurm_id for job_id in job_ids]
        return answers.hopeless([live[number] for number in numbers if number in live])

    def _state(self, record: SlurmJob) -> State | None:
        """Return Slurm's state of a job; a job that has said how it ended is not asked for."""
        return door.state(record.slurm_id) if record.exit_code is None else None


def _more(log: Path, place: int, write: Callable[[str], Any]) -> int:
    """Write what a file has after a place; return the place of its end."""
    try:
        with log.open("rb") as file:
            file.seek(place)
            new = file.read()
    except FileNotFoundError:
        return place
    if new:
        write(new.decode(errors="replace"))
    return place + len(new)


def _remove(script_path: Path, folders: list[Path]) -> None:
    """Remove the files of a job that Slurm has refused: the script, and folders that are new."""
    script_path.unlink(missing_ok=True)
    for folder in folders:
        for each in (folder / slurm_job.FOLDER, folder):
            if each.is_dir() and not os.listdir(each):
                each.rmdir()
