"""Calls of Slurm's commands: sbatch, squeue, scontrol, scancel and sacct.

submitit was not taken: it runs pickled functions of its own, asks sacct alone for states, which needs Slurm's
accounting daemon, and writes a script that starts no Ray. These commands are Slurm's stable interface.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from raygpu.engines.slurm import command_output
from raygpu.engines.slurm.command_output import State
from raygpu.errors import BadInput, RaygpuError

TIMEOUT_S = 60.0
UNKNOWN = "Invalid job id"
FIELDS = "--format=%i|%T|%r|%N|%o"


def is_installed() -> bool:
    """Return whether this machine can submit jobs to Slurm."""
    return shutil.which("sbatch") is not None


def answers_here() -> bool:
    """Return whether Slurm can be used from this machine: its package may be there without a cluster."""
    if not is_installed():
        return False
    try:
        return _called(["scontrol", "ping"]).returncode == 0
    except RaygpuError:
        return False


def submit(script: Path) -> tuple[str, list[str]]:
    """Submit a batch script; return the job's id and sbatch's lines. Raises BadInput with Slurm's own words."""
    if not is_installed():
        raise BadInput("slurm: there is no sbatch on this machine; submit from a login node of the cluster")
    done = _called(["sbatch", str(script)])
    number = command_output.job_number(done.stdout)
    if done.returncode or number is None:
        said = command_output.own_words(done.stderr or done.stdout) or f"sbatch ended with status {done.returncode}"
        raise BadInput(f"slurm: {said}")
    return number, [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def queue() -> dict[str, State]:
    """Return the states of this user's jobs that wait or run, by id. Raises RaygpuError where Slurm does not answer."""
    done = _called(["squeue", "--noheader", "--me", "--array", FIELDS])
    if done.returncode:
        raise RaygpuError(f"squeue: {command_output.own_words(done.stderr)}")
    return command_output.of_queue(done.stdout)


def shown(number: str) -> dict[str, str]:
    """Return what `scontrol show job` knows of a job; empty where Slurm has forgotten it.

    Raises RaygpuError where Slurm does not answer.
    """
    done = _called(["scontrol", "--oneliner", "show", "job", number])
    if done.returncode:
        if UNKNOWN in done.stderr + done.stdout:
            return {}
        raise RaygpuError(f"scontrol: {command_output.own_words(done.stderr or done.stdout)}")
    return command_output.of_control(done.stdout)


def state(number: str) -> State | None:
    """Return the state of a job; None where neither Slurm nor its accounting knows it. Raises RaygpuError."""
    job_state = command_output.state_of(shown(number))
    if job_state is not None or shutil.which("sacct") is None:
        return job_state
    done = _called(["sacct", "--noheader", "--parsable2", "--jobs", number, "--format=State,ExitCode"])
    return command_output.of_accounting(done.stdout) if done.returncode == 0 else None


def cancel(number: str) -> None:
    """End a job at once. Raises BadInput with Slurm's own words."""
    _require(_called(["scancel", number]), "scancel")


def signal(number: str, name: str) -> None:
    """Send a signal to a job's batch script. Raises BadInput with Slurm's own words."""
    _require(_called(["scancel", f"--signal={name}", "--batch", number]), "scancel")


def requeue(number: str) -> None:
    """Queue a running job again, which ends it. Raises BadInput with Slurm's own words."""
    _require(_called(["scontrol", "requeue", number]), "scontrol")


def hosts(node_list: str) -> list[str]:
    """Return the names of the nodes in a list of Slurm's, as n[1-2]. Raises RaygpuError."""
    done = _called(["scontrol", "show", "hostnames", node_list])
    if done.returncode:
        raise RaygpuError(f"scontrol: {command_output.own_words(done.stderr)}")
    return command_output.host_names(done.stdout)


def node_address(node: str) -> str | None:
    """Return the address of a node, a name or an IP address; None where Slurm does not say."""
    done = _called(["scontrol", "--oneliner", "show", "node", node])
    return command_output.of_control(done.stdout).get("NodeAddr") if done.returncode == 0 else None


def _require(done: subprocess.CompletedProcess[str], command: str) -> None:
    if done.returncode or "error:" in done.stderr:
        raise BadInput(f"{command}: {command_output.own_words(done.stderr or done.stdout)}")


def _called(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ | {"LC_ALL": "C"}, check=False
        )
    except FileNotFoundError as error:
        raise BadInput(f"slurm: there is no {words[0]} on this machine; a login node of the cluster has it") from error
    except subprocess.TimeoutExpired as error:
        raise RaygpuError(f"{words[0]}: Slurm has not answered for {TIMEOUT_S:g} s") from error
