"""Submit commands as jobs to a cluster through Ray's Jobs API, over HTTP alone.

jobs = Jobs("http://127.0.0.1:8265")
job_id = jobs.submit(Submission("sweep", "digits-1", ...))
ended = jobs.follow(job_id, print)
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from raygpu.engines.cluster import ray_environment, runtime_env
from raygpu.engines.cluster.ray_files import token_file
from raygpu.errors import BadInput, RaygpuError, one_line
from raygpu.records import scratch
from raygpu.records.submitted_job import Submission, SubmittedJob

PACKAGE = "raygpu_job"
"""Python package that is sent with a job: its command, configuration and environment variables."""
JOB_FILE = "job.json"
STOP_S = "120"
"""Seconds that a job has to end after `stop`, checkpoints included."""
CLIENT_LOGGERS = ("ray", "ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk")
RETRY_S = 2.0
SILENT_S = 15.0
"""Seconds without output after which the job's status is checked."""
LOST_S = 300.0
"""Seconds for which a lost connection is tried again."""
LOST = "the node of its driver, as a rule the head, was lost; a search or a training goes on by --resume"
TOO_LARGE = (
    "the folder that is submitted is larger, zipped, than it takes (Ray's dashboard 100 MiB); leave data out by"
    " a .rayignore, written as a .gitignore"
)
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
TOKEN_WANTED = "set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH"
SERVER = "RAY_API_SERVER_ADDRESS"
"""Variable that Ray's client prefers to the address that it is given."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Jobs:
    """The jobs of one cluster. Methods raise BadInput where the cluster refuses, and RaygpuError where it is lost."""

    def __init__(self, address: str) -> None:
        """Connect to a cluster. address: its dashboard, http(s)://HOST:PORT. Raises BadInput or RaygpuError."""
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadInput(f"--address: read {address!r}; wanted: that of the dashboard, as in http://127.0.0.1:8265")
        if parts.username is not None:
            raise BadInput(f"--address: has credentials in it; {TOKEN_WANTED}")
        self.address = address.rstrip("/")
        _choose_token(parts.hostname)
        from ray.job_submission import JobSubmissionClient

        for name in CLIENT_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)
        with self._told():
            self._client = JobSubmissionClient(self.address)

    def submit(self, submission: Submission) -> str:
        """Submit a job and return its id, COMMAND-NAME. Raises BadInput if the cluster has that id already."""
        job_id = f"{submission.command}-{submission.name}"
        with tempfile.TemporaryDirectory(prefix="job-", dir=scratch.home()) as folder, self._told(job_id):
            environment = runtime_env.runtime_env(submission.source_folder)
            environment["py_modules"] = [*environment["py_modules"], str(_packed(submission, Path(folder)))]
            environment["env_vars"] = environment["env_vars"] | {"RAY_JOB_STOP_WAIT_TIME_S": STOP_S}
            if submission.environment:
                environment["worker_process_setup_hook"] = "raygpu.job.set_environment"
            if submission.requirements:
                environment["pip"] = list(submission.requirements)
            return str(
                self._client.submit_job(
                    entrypoint="python -m raygpu.job",
                    submission_id=job_id,
                    runtime_env=environment,
                    metadata={"raygpu": submission.command},
                    entrypoint_num_gpus=submission.num_gpus or None,
                )
            )

    def job(self, job_id: str) -> SubmittedJob:
        """Return the state of a job; a job whose driver's node is gone has failed, whatever Ray says."""
        with self._told(job_id):
            return self._job(self._client.get_job_info(job_id))

    def all(self) -> list[SubmittedJob]:
        """Return the jobs that raygpu submitted, the newest first."""
        with self._told():
            jobs = [self._job(details) for details in self._client.list_jobs() if details.submission_id]
        ours = [job for job in jobs if job.command]
        return sorted(ours, key=lambda job: job.started or datetime.max.replace(tzinfo=UTC), reverse=True)

    def stop(self, job_id: str) -> None:
        """Ask a job to end, as Ctrl-C does; no effect on a job that has ended."""
        with self._told(job_id):
            self._client.stop_job(job_id)

    def logs(self, job_id: str) -> str:
        """Return the whole output of a job so far."""
        with self._told(job_id):
            return str(self._client.get_job_logs(job_id))

    def follow(self, job_id: str, write: Callable[[str], Any]) -> SubmittedJob:
        """Write a job's output, from its first line on, until the job ends; return its last state.

        A lost connection is made again; raises RaygpuError once the cluster has not answered for LOST_S seconds.
        """
        self.job(job_id)
        writer, lost_at = _Told(write), None
        while True:
            try:
                lost = self._tailed(job_id, writer)
                job = self.job(job_id)
                if job.is_over:
                    if not job.is_lost:
                        writer.all(self.logs(job_id))  # what came between the last look and the end
                    return job
            except BadInput:
                raise
            except RaygpuError as error:
                lost = error
            if lost is None:
                lost_at = None
            else:
                if lost_at is None or writer.new:
                    lost_at, writer.new = time.monotonic(), False
                if time.monotonic() - lost_at > LOST_S:
                    raise RaygpuError(f"{self.address} does not answer any more: {lost}") from lost
            time.sleep(RETRY_S)

    def _tailed(self, job_id: str, told: _Told) -> RaygpuError | None:
        """Write new output until the job or the connection ends; return the error of a lost connection, or None."""
        try:
            with self._told(job_id):
                asyncio.run(self._tail(job_id, told))
        except BadInput:
            raise
        except RaygpuError as error:
            return error
        return None

    async def _tail(self, job_id: str, told: _Told) -> None:
        """Write new output until the job or the connection ends; without new output, check that the job still runs."""
        stream = self._client.tail_job_logs(job_id)
        told.again()
        coming: asyncio.Future[str] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(stream))
                if not (await asyncio.wait({coming}, timeout=SILENT_S))[0]:
                    if (await asyncio.to_thread(self.job, job_id)).is_over:
                        return
                    continue
                text, coming = coming.result(), None
                told.next(text)
        except StopAsyncIteration:
            return
        finally:
            if coming is not None:
                coming.cancel()

    def _job(self, details: Any) -> SubmittedJob:
        job = SubmittedJob(
            job_id=str(details.submission_id),
            status=str(getattr(details.status, "value", details.status)),
            command=(details.metadata or {}).get("raygpu", ""),
            started=_time(details.start_time),
            ended=_time(details.end_time),
            driver_exit_code=details.driver_exit_code,
            message=" ".join((details.message or "").split()),
        )
        if job.is_over or details.driver_node_id is None or not self._has_lost(details.driver_node_id):
            return job
        # Ray calls it running: a head that starts again looks after its jobs once another is submitted.
        return replace(job, status="FAILED", message=LOST, is_lost=True)

    def _has_lost(self, node_id: str) -> bool:
        """Return whether a node is dead, or unknown to the cluster."""
        from ray.util.state import get_node
        from ray.util.state.exception import RayStateApiException

        try:
            node = get_node(node_id, address=self.address)
        except RayStateApiException:  # it cannot tell at this moment
            return False
        return node is None or getattr(node, "state", None) == "DEAD"

    @contextmanager
    def _told(self, job_id: str | None = None) -> Iterator[None]:
        """Turn the errors of Ray's client into BadInput or RaygpuError of one line."""
        import aiohttp  # what Ray's client speaks by, and what it lets through
        import requests
        from ray.exceptions import AuthenticationError

        try:
            with ray_environment.variable(SERVER, self.address):
                yield
        except AuthenticationError as error:
            reason = "it refused the token" if "failed" in str(error) else "it wants a token"
            raise BadInput(f"--address: {self.address}: {reason}; {TOKEN_WANTED}") from error
        except (ConnectionError, requests.RequestException, aiohttp.ClientError, TimeoutError) as error:
            if isinstance(error, BrokenPipeError):  # whoever reads this has enough
                raise
            raise RaygpuError(
                f"--address: no Ray answers at {self.address} ({one_line(error)}); wanted: that of its dashboard, which"
                " kubectl port-forward brings here from Kubernetes"
            ) from error
        except (RuntimeError, ValueError) as error:
            text = one_line(error)
            if "already exists" in str(error):
                raise BadInput(
                    f"--address: {self.address} has a job {job_id} already; choose another --name"
                ) from error
            code = re.search(r"status code (\d)(\d\d)", text)
            if job_id is not None and code is not None and code[0].endswith("404"):
                raise BadInput(f"read {job_id!r}; {self.address} has no such job: list shows them") from error
            if code is not None and code[0].endswith("413"):
                raise BadInput(f"--address: {self.address}: {TOO_LARGE}") from error
            lost = "closed unexpectedly" in text or (code is not None and code[1] == "5")
            kind = RaygpuError if lost else BadInput
            raise kind(f"--address: {self.address}: {text}") from error


class _Told:
    """Writer of a job's output that skips repeated text: each new connection begins at the first line again."""

    def __init__(self, write: Callable[[str], Any]) -> None:
        self._write = write
        self._shown = self._seen = 0
        self.new = False
        """Whether any output has come since this was set to False."""

    def again(self) -> None:
        """Begin a new connection, whose output starts at the first line."""
        self._seen = 0

    def next(self, text: str) -> None:
        """Take the next piece of the connection's output, and write the part that was not written before."""
        self._seen += len(text)
        self.new = True
        if self._seen > self._shown:
            self._write(text[-(self._seen - self._shown) :])
            self._shown = self._seen

    def all(self, text: str) -> None:
        """Take the whole output from its first line on, and write the part that was not written before."""
        self.again()
        self.next(text)


def unprotected(address: str) -> bool:
    """Return whether a token would be sent to this address unencrypted over a network."""
    parts = urlsplit(address)
    named = any(os.environ.get(name) for name in TOKENS)
    return named and parts.scheme == "http" and parts.hostname not in LOOPBACK


def _choose_token(host: str) -> None:
    """Turn on Ray's token if the user has named one, or for this machine's cluster if Ray keeps one under HOME."""
    named = any(os.environ.get(name) for name in TOKENS)
    path = token_file() if host in LOOPBACK else None
    has_file = path is not None and path.is_file()
    if named or has_file:
        ray_environment.show_token()


def _packed(submission: Submission, folder: Path) -> Path:
    """Write the Python package that is sent with a job, and return its folder."""
    package = folder / PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    if submission.config is not None:
        (package / submission.config.name).write_bytes(submission.config.read_bytes())
    payload = {
        "command": submission.command,
        "config": submission.config and submission.config.name,
        "argv": list(submission.argv),
        "environment": dict(submission.environment),
    }
    (package / JOB_FILE).write_text(json.dumps(payload))
    return package


def _time(milliseconds: int | None) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
