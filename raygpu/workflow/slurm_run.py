"""The driver of a Slurm job: it takes the place of the batch script's shell, and so gets Slurm's signals.

It starts Ray over the job's nodes, runs the command, has it write its checkpoints when time runs out, brings the store
of MLflow back from the node's disk, and queues the job again until the run is done.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from raygpu.devices import nvml
from raygpu.devices.rgu import rgu
from raygpu.devices.selection import select
from raygpu.devices.slurm_allocation import allocation
from raygpu.engines.slurm import command_output, commands, node_folders, ray_nodes
from raygpu.engines.slurm.ray_nodes import NODES_LOG, RayNodes
from raygpu.errors import RaygpuError
from raygpu.records import slurm_job
from raygpu.records.slurm_job import SlurmJob
from raygpu.tracking import carried_store
from raygpu.workflow.slurm_course import INTERRUPTED, RESUMED, Cause, course, progress_of, usage_line, words_to_run
from raygpu.workflow.slurm_stores import JobStores

LOOK_S = 0.2
ASK_S = 10.0
"""Seconds between two questions to Slurm."""
KILLED_S = 60.0
"""Seconds to wait for Slurm to end a job that was queued again."""
TOLD_S = 22.0
"""Seconds that a command has once Slurm ends the job: after KillWait, by default 30 s, all is killed."""
WITHOUT_JOURNAL = ("pack", "balance", "place")
"""Commands that write to the store at their end alone, and have no journal."""
CAUSES: Mapping[int, Cause] = {signal.SIGUSR1: "clock", signal.SIGTERM: "told", signal.SIGINT: "stopped"}
SAID: Mapping[Cause, str] = {
    "clock": "the wall time ends soon",
    "preempted": "Slurm gives the nodes to another job",
    "told": "Slurm ends this job",
    "stopped": "asked to stop",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Place in which a job runs."""

    number: str
    """Slurm's id of the job."""
    nodes: list[str]
    node_disk: Path
    """The job's own folder on the node's disk."""
    ray_folder: Path
    """The folder of its Ray."""

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Place:
        """Return the place by the environment of a batch script. Raises RaygpuError outside of a Slurm job."""
        if "SLURM_JOB_ID" not in variables:
            raise RaygpuError("this is the driver of a Slurm job: sbatch the script, or run the command without it")
        number = variables["SLURM_JOB_ID"]
        if "SLURM_ARRAY_JOB_ID" in variables:
            number = f"{variables['SLURM_ARRAY_JOB_ID']}_{variables['SLURM_ARRAY_TASK_ID']}"
        nodes = variables.get("SLURM_JOB_NODELIST", "")
        several = variables.get("SLURM_JOB_NUM_NODES", "1") != "1"
        folder = node_folders.job_folder(variables)
        ray_folder = node_folders.ray_folder(folder, number)
        return cls(number, commands.hosts(nodes) if several else [nodes], folder, ray_folder)


class Driver:
    """The driver of one start of a job."""

    def __init__(self, folder: Path, command: str, words: Sequence[str], max_restarts: int) -> None:
        """folder: the run's. words: the command's arguments. max_restarts: how often the job is queued again."""
        self.folder, self.command, self.words, self.max_restarts = folder, command, words, max_restarts
        self.place = Place.of(os.environ)
        self.cause: Cause | None = None
        self._num_stops = 0
        self._began, self._asked_at = time.monotonic(), -ASK_S
        now = time.time()
        self._killed_at = math.inf
        self._lost_at = math.inf
        """Time at which a node's Ray was found to have ended before all had started."""
        self._fault = ""
        self._num_requeues = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
        self.job = job = slurm_job.read(folder) or SlurmJob(
            f"{command}-{folder.name}", command, self.place.number, str(folder), now
        )
        self.stores = JobStores(job.store, self.place.number, self.place.node_disk, self._say)
        self._note_down(
            slurm_id=self.place.number,
            started=job.started or now,
            ended=None,
            exit_code=None,
            restarts=max(self._num_requeues, job.restarts + (job.started is not None)),
            seconds_before=job.seconds if job.seconds_before is None or not self._num_requeues else job.seconds_before,
            nodes=", ".join(self.place.nodes),
            message="",
        )
        with suppress(OSError, RaygpuError):  # then it is not listed
            slurm_job.register(folder)

    def run(self) -> int:
        """Run the command to its end, or to the end of the time; return the job's exit code."""
        for number in CAUSES:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(CAUSES))
        place = self.place
        try:
            node_folders.make(place.node_disk, place.ray_folder)
            variables = self._variables()
            if len(place.nodes) > 1:
                with (ray := RayNodes(place.nodes, place.ray_folder, variables)) as address:
                    exit_code = self._command(variables, self._of_cluster(address), ray)
            else:
                exit_code = self._command(variables, [], None)
        except (RaygpuError, OSError) as error:
            self._say(f"raygpu: {error}")
            exit_code = INTERRUPTED if self.cause is not None else 1
        self.stores.bring_back()
        return self._end(exit_code)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Note why the command is to end; a stop holds too where the time had run out, so that nothing comes again."""
        self._num_stops += number == signal.SIGINT
        if self.cause is None or (number == signal.SIGINT and self.cause != "told"):
            self.cause = CAUSES[number]
        if number == signal.SIGTERM:
            self._killed_at = min(self._killed_at, time.monotonic() + TOLD_S)

    def _variables(self) -> dict[str, str]:
        """Return the environment of Ray and of the command."""
        variables = ray_nodes.environment(os.environ)
        variables |= {"PYTHONUNBUFFERED": "1", "MLFLOW_DISABLE_TELEMETRY": "true"}
        variables[slurm_job.VARIABLE] = str(self.folder)
        if len(self.place.nodes) == 1:
            variables.setdefault("RAY_TMPDIR", str(self.place.ray_folder))
        return variables | self.stores.variables()

    def _of_cluster(self, address: str) -> list[str]:
        """Return the flags by which the command uses the job's Ray, once all of its GPUs are there."""
        flags = ["--cluster.address", address]
        num_gpus = (allocation().num_gpus or 0) * len(self.place.nodes)
        return [*flags, "--cluster.min-gpus", str(num_gpus)] if num_gpus else flags

    def _command(self, variables: Mapping[str, str], more: Sequence[str], ray: RayNodes | None) -> int:
        """Run the command; interrupt it once there is a cause. Returns its exit code."""
        words = [*words_to_run(self.command, self.words, self.folder), *more]
        if carried_store.SPOOL_VARIABLE in variables and self.command in WITHOUT_JOURNAL:
            words += ["--tracking.enabled", "false"]
        again = f", start {self.job.restarts + 1}" if self.job.restarts else ""
        self._say(
            f"Slurm job {self.place.number}{again} on {', '.join(self.place.nodes)}: {self.command} {' '.join(words)}"
        )
        process = subprocess.Popen(
            [sys.executable, "-m", f"raygpu.{self.command}", *words],
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        notice = self._notice() if ray is None else None
        num_sent = 0
        while process.poll() is None:
            time.sleep(LOOK_S)
            if self.cause is None and self._is_preempted(notice, ray):
                self.cause = "preempted"
            if self.cause is None and not self._fault and ray is not None and self._is_without_nodes(ray):
                process.send_signal(signal.SIGINT)
            if self.cause is not None and num_sent < 1 + (self._num_stops > 1):  # a second stop leaves checkpoints out
                if not num_sent:
                    self._say(f"{SAID[self.cause]}: {self.command} writes its checkpoints")
                process.send_signal(signal.SIGINT)
                num_sent += 1
            if time.monotonic() > self._killed_at:
                self._say(f"{self.command} has not ended within {TOLD_S:g} s, and is killed")
                process.kill()
                process.wait()
        if notice is not None and notice.poll() is None:
            notice.terminate()
        return self._exit_code(process.returncode)

    def _exit_code(self, status: int) -> int:
        """Return the command's exit code; note a fault where nobody has asked it to end. status: of its process."""
        if self.cause is not None:
            return INTERRUPTED if status < 0 else status
        if self._fault:
            return 1
        if status < 0:
            of_memory = " (out of memory?)" if -status == signal.SIGKILL else ""
            more = "; a larger slurm.mem may help" if of_memory else ""
            goes_on = (
                f"; it goes on by: sbatch {self.job.script}" if self.command in RESUMED and self.job.script else ""
            )
            self._fault = f"{self.command} was killed by signal {-status}{of_memory}{more}{goes_on}"
        return abs(status)

    def _is_without_nodes(self, ray: RayNodes) -> bool:
        """Return whether a node's Ray has failed to start, and not because Slurm ends the job; print its last lines."""
        if (lines := ray.start_fault) is None:
            return False
        self._lost_at = min(self._lost_at, time.monotonic())
        if time.monotonic() < self._lost_at + ASK_S:
            return False
        log = self.folder / slurm_job.NODES_LOG
        self._say(lines)
        self._fault = f"Ray did not start on all of {', '.join(self.place.nodes)}; its output is in {log}"
        return True

    def _notice(self) -> subprocess.Popen[bytes] | None:
        """Start a step that does nothing: before a preemption, Slurm ends the steps of a job, and not its script."""
        words = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=0", "--quiet"]
        try:
            return subprocess.Popen(
                [*words, "sleep", "infinity"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None

    def _is_preempted(self, notice: subprocess.Popen[bytes] | None, ray: RayNodes | None) -> bool:
        """Return whether a step has ended because Slurm is about to give the nodes to another job."""
        if not ((notice is not None and notice.poll() is not None) or (ray is not None and ray.lost)):
            return False
        if self._asked_at + ASK_S > time.monotonic():
            return False
        self._asked_at = time.monotonic()
        try:
            return commands.shown(self.place.number).get("PreemptTime", "None") != "None"
        except RaygpuError:
            return False

    def _end(self, exit_code: int) -> int:
        """Note the end, and queue the job again if there is more to do. Returns the job's exit code."""
        stores = self.stores.claimed()  # before the node's disk is emptied
        with suppress(OSError):  # a job on one node has none
            shutil.copyfile(self.place.ray_folder / NODES_LOG, self.folder / slurm_job.NODES_LOG)
        progress = [*self.job.progress, progress_of(self.folder)]
        self._account(progress)
        job_course = course(self.command, self.cause, exit_code, self.job.restarts, self.max_restarts, progress)
        message = job_course.message or self._fault
        comes_again = self._killed_at < math.inf and self._is_requeued()
        if job_course.again and not comes_again:
            refusal = self._requeue()
            if refusal is None:
                return exit_code
            message, comes_again = refusal, bool(refusal) and self._is_requeued()
        if comes_again and self._num_stops:  # while it wrote its checkpoints, too
            comes_again = not self._cancels()
        if comes_again:
            message = slurm_job.QUEUED_AGAIN
            self._say("queued again by Slurm itself")
        elif message:
            self._say(message)
        if self._killed_at < math.inf and exit_code == 1:  # Slurm has ended Ray, too, beneath the command
            exit_code = INTERRUPTED
        is_last = comes_again is False  # else it may come again
        if is_last:
            self.stores.release(stores)
        node_folders.delete(self.place.node_disk, self.place.ray_folder)
        self._note_down(exit_code=exit_code if is_last else None, ended=time.time(), message=message)
        return exit_code

    def _requeue(self) -> str | None:
        """Queue the job again; return None, or why it is not, empty where it was stopped or cancelled."""
        self._note_down(message=slurm_job.QUEUED_AGAIN)
        node_folders.delete(self.place.node_disk, self.place.ray_folder)
        if self._is_stopped() or self._is_cancelled():  # since the command was interrupted
            return ""
        try:
            commands.requeue(self.place.number)
        except RaygpuError as error:
            return f"not queued again ({error}); it goes on by: sbatch {self.job.script}"
        self._say("queued again, to go on from the checkpoints")
        until = time.monotonic() + KILLED_S  # Slurm ends this process meanwhile
        while not self._is_stopped() and time.monotonic() < until:
            time.sleep(LOOK_S)
        return "" if self._is_stopped() and self._cancels() else None

    def _cancels(self) -> bool:
        """Cancel a job that was stopped while it was queued again; return whether Slurm has taken that."""
        try:
            commands.cancel(self.place.number)
        except RaygpuError as error:
            self._say(f"stopped, and queued again all the same ({error})")
            return False
        return True

    def _is_stopped(self) -> bool:
        """Return whether the job was asked to stop, which may happen at any moment."""
        return self.cause == "stopped"

    def _is_cancelled(self) -> bool:
        """Return whether somebody has cancelled the job; Slurm's own reasons to end one let it come again."""
        if self._killed_at == math.inf:
            return False
        try:
            shown = commands.shown(self.place.number)
        except RaygpuError:
            return False
        return command_output.is_cancelled(shown, self._num_requeues)

    def _is_requeued(self) -> bool | None:
        """Return whether Slurm itself has queued the job again, None if it does not answer.

        While a job completes, its count of restarts tells.
        """
        try:
            return int(commands.shown(self.place.number).get("Restarts", "0")) > self._num_requeues
        except RaygpuError:
            return None

    def _account(self, progress: list[float]) -> None:
        """Add this start to what the job has used, and print it."""
        seconds = time.monotonic() - self._began
        try:
            gpus = select(nvml.gpus(), "all", os.environ.get("CUDA_VISIBLE_DEVICES"))
        except RaygpuError:
            gpus = []
        worth = [rgu(gpu.name, gpu.memory_gib) for gpu in gpus]
        num_nodes, rgu_hours = len(self.place.nodes), self.job.rgu_hours
        if worth and None not in worth:
            here = sum(value for value in worth if value is not None) * num_nodes * seconds / 3600
            rgu_hours = (rgu_hours or 0.0) + here
        seconds += self.job.seconds
        self._note_down(seconds=seconds, rgu_hours=rgu_hours, progress=progress)
        self._say(usage_line(self.place.number, seconds / 3600, num_nodes, [gpu.name for gpu in gpus], rgu_hours))

    def _note_down(self, **values: Any) -> None:
        """Change the job's record; where its disk takes nothing more, the job goes on without."""
        try:
            self.job = self.job.write(**values)
        except OSError as error:
            self.job = replace(self.job, **values)
            self._say(f"the job's record in {self.folder} cannot be written: {error.strerror}")

    def _say(self, line: str) -> None:
        with suppress(OSError):  # the output is a file, too
            print(line, flush=True)
