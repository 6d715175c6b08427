"""The jobs that raygpu submitted to Slurm, with the methods of a Ray cluster's (`engines/cluster/jobs.py`)."""

from __future__ import annotations

import codecs
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from raygpu.config.slurm_section import tasks
from raygpu.engines.slurm import command_output, commands
from raygpu.engines.slurm.batch_script import BatchJob, script
from raygpu.engines.slurm.command_output import State
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
        with _Files(job, folders, store) as files:
            number, lines = commands.submit(files.script)
        for line in lines:
            say(line)
        for folder, index in zip(folders, tasks(array) if array is not None else [None], strict=True):
            slurm_id = number if index is None else f"{number}_{index}"
            record = slurm_job.read(folder)
            if record is not None and record.slurm_id != slurm_id:  # else the job has begun already
                with suppress(OSError):  # the job notes it, too, when it begins
                    record.write(slurm_id=slurm_id)
        return [f"{job.command}-{folder.name}" for folder in folders]

    def record(self, job_id: str) -> SlurmJob:
        """Return the record of a job by its id, COMMAND-NAME, or Slurm's number. Raises BadInput."""
        record = _noted(job_id)
        return command_output.queued_by_hand(record, _queue()) if record.exit_code is not None else record

    def has(self, job_id: str) -> bool:
        """Return whether a job of this id was submitted to Slurm."""
        return any(job_id in (record.job_id, record.slurm_id) for record in slurm_job.submitted())

    def job(self, job_id: str) -> SubmittedJob:
        """Return the state of a job."""
        record = self.record(job_id)
        return command_output.submitted_job(record, self._state(record))

    def all(self) -> list[SubmittedJob]:
        """Return the submitted jobs whose run folders are still there, the newest first."""
        records, live = list(slurm_job.submitted()), {}
        if any(record.exit_code is None for record in records):
            live = commands.queue()
        elif records:
            live = _queue()
        records = [command_output.queued_by_hand(record, live) for record in records]
        return [
            command_output.submitted_job(record, live.get(record.slurm_id) or self._state(record)) for record in records
        ]

    def stop(self, job_id: str) -> SubmittedJob | None:
        """Ask a job to end, as Ctrl-C does; take one that waits out of the queue.

        Returns the state of a job that has ended, now or before; None of one that writes what it has first.
        """
        record = self.record(job_id)
        state = self._state(record)
        if state is None or not state.is_live:
            return command_output.submitted_job(record, state)
        # Slurm's word is COMPLETING for half a minute; in a job that runs, a driver may not have got its note written.
        has_ended = record.message == slurm_job.QUEUED_AGAIN or record.ended is not None
        if state.word in command_output.PENDING or (has_ended and state.word != "RUNNING"):
            commands.cancel(record.slurm_id)
            end: dict[str, Any] = {"exit_code": 130, "ended": time.time()}
            end["message"] = "before it ran, or between two starts"
            with suppress(OSError):  # Slurm has cancelled it all the same
                record.write(**end)
            return command_output.submitted_job(replace(record, **end), None)
        commands.signal(record.slurm_id, "INT")
        return None

    def logs(self, job_id: str) -> str:
        """Return the whole output of a job so far."""
        try:
            return slurm_job.log_of(Path(self.record(job_id).folder)).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def follow(self, job_id: str, write: Callable[[str], Any]) -> SubmittedJob:
        """Write a job's output, from its first line on, until the job ends for good; return its last state."""
        folder = Path(_noted(job_id).folder)
        log = _Log(slurm_job.log_of(folder), write)
        asked, waiting, has_ended = -ASK_S, "", False
        while True:
            log.more()
            record = slurm_job.read(folder)
            had_ended, has_ended = has_ended, record is not None and record.exit_code is not None
            if time.monotonic() - asked >= ASK_S or (has_ended and not had_ended):
                job = self._answered(job_id)
                asked = time.monotonic()
                if job is not None and job.is_over:
                    time.sleep(LAST_S)
                    log.more()
                    job = self._answered(job_id)  # which may have begun anew meanwhile
                    if job is not None and job.is_over:
                        return job
                if job is not None and job.status == "PENDING" and job.message != waiting:
                    waiting = job.message
                    write(f"{waiting}\n")
            time.sleep(LOOK_S)

    def _answered(self, job_id: str) -> SubmittedJob | None:
        """Return the state of a job; None of a Slurm that is too busy to answer."""
        try:
            return self.job(job_id)
        except BadInput:
            raise
        except RaygpuError:
            return None

    def waits_in_vain(self, job_ids: list[str]) -> list[str]:
        """Return a line for each reason for which Slurm will never start these jobs, as far as it answers."""
        live = _queue()
        numbers = {record.job_id: record.slurm_id for record in reversed([*slurm_job.submitted()])}  # the newest counts
        states = [live.get(numbers.get(job_id, "")) for job_id in job_ids]
        return command_output.hopeless([state for state in states if state is not None])

    def _state(self, record: SlurmJob) -> State | None:
        """Return Slurm's state of a job; a job that has said how it ended is not asked for."""
        return commands.state(record.slurm_id) if record.exit_code is None else None


def _noted(job_id: str) -> SlurmJob:
    """Return what a job has noted of itself. Raises BadInput."""
    for record in slurm_job.submitted():
        if job_id in (record.job_id, record.slurm_id):
            return record
    raise BadInput(f"read {job_id!r}; no such job was submitted to Slurm from here: list shows them")


def _queue() -> dict[str, State]:
    """Return this user's jobs that wait or run; none where Slurm does not answer, as on a machine without it."""
    try:
        return commands.queue()
    except RaygpuError:
        return {}


class _Log:
    """The output of a job, written on as it grows."""

    def __init__(self, path: Path, write: Callable[[str], Any]) -> None:
        self._path, self._write, self._place = path, write, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> None:
        """Write what has come since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:
            return
        self._place += len(new)
        if text := self._decoder.decode(new):
            self._write(text)


class _Files:
    """The files of a job that is submitted: its script, and in each run's folder a record, which the job reads.

    If Slurm refuses the job, all is as it was before.
    """

    def __init__(self, job: BatchJob, folders: Sequence[Path], store: str) -> None:
        self.script = job.folder / SCRIPT
        self._job, self._store, self._folders = job, store, folders
        self._new = [folder for folder in dict.fromkeys([job.folder, *folders]) if not folder.exists()]
        self._before = {path: path.read_bytes() for path in self._paths() if path.is_file()}

    def _paths(self) -> list[Path]:
        return [self.script, *(folder / slurm_job.RECORD for folder in self._folders)]

    def __enter__(self) -> _Files:
        """Write the files, and note the folders. Raises BadInput if they cannot be written."""
        slurm_job.registry()  # raises BadInput before there is anything to undo
        earlier = [slurm_job.read(folder) for folder in self._folders]
        try:
            for path in self._paths():
                path.parent.mkdir(parents=True, exist_ok=True)
            self.script.write_text(script(self._job))
            self.script.chmod(0o755)
            for folder, entry in zip(self._folders, earlier, strict=True):
                record = SlurmJob(
                    job_id=f"{self._job.command}-{folder.name}",
                    command=self._job.command,
                    slurm_id="",
                    folder=str(folder),
                    submitted=time.time(),
                    script=str(self.script),
                    store=self._store,
                )
                record.write(seconds=entry.seconds if entry else 0.0, rgu_hours=entry.rgu_hours if entry else None)
        except OSError as error:
            self._restore()
            raise BadInput(f"runs_dir: {self.script.parent} cannot be written: {error.strerror}") from error
        try:
            for folder in self._folders:
                slurm_job.register(folder)
        except OSError as error:
            self._restore()
            where = f"{slurm_job.registry()}, raygpu's list of submitted jobs,"
            raise BadInput(f"slurm: {where} cannot be written: {error.strerror}") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            self._restore()

    def _restore(self) -> None:
        for path in self._paths():
            with suppress(OSError):
                if path in self._before:
                    path.write_bytes(self._before[path])
                else:
                    path.unlink(missing_ok=True)
        for folder in self._new:
            for each in (folder / slurm_job.FOLDER, folder):
                with suppress(OSError):  # not there, or not empty
                    each.rmdir()
