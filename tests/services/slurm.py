"""A real Slurm on loopback: munged, slurmctld, and a slurmd for each of two nodes, in a folder of its own.

Debian's package lets several slurmd run on one machine. Nodes are n1 and n2, with two CPUs and two GPUs each that are
no devices (/dev/null and /dev/zero). Partitions: cpu, at most 10 minutes and preempted with notice; short, the same
without notice; urgent, which preempts both.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from raygpu.engines.cluster import ray_environment
from tests.tracking.services import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
ADDRESSES = {"n1": "127.0.0.21", "n2": "127.0.0.22"}
GRACE_S = 60
START_S = 60
CONFIGURATION = """
ClusterName=raygpu
FirstJobId={first}
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
CommunicationParameters=NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SlurmdTimeout=10
KillWait=30
EnforcePartLimits=ALL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
MailProg=/bin/true
NodeName=n1 NodeHostname=localhost NodeAddr={n1} Port={port_n1} CPUs=2 RealMemory=8000 Gres=gpu:2 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr={n2} Port={port_n2} CPUs=2 RealMemory=8000 Gres=gpu:2 State=UNKNOWN
PartitionName=cpu Nodes=n1,n2 Default=YES MaxTime=10 PriorityTier=1 GraceTime={grace_s}
PartitionName=short Nodes=n1,n2 MaxTime=10 PriorityTier=1
PartitionName=urgent Nodes=n1,n2 MaxTime=10 PriorityTier=10 PreemptMode=OFF
"""
GRES = "NodeName=n[1-2] Name=gpu File=/dev/null\nNodeName=n[1-2] Name=gpu File=/dev/zero\n"


class Slurm:
    """A running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        outside = {ray_environment.ON_LOOPBACK, "RAY_AUTH_MODE", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"}
        inherited = {name: value for name, value in os.environ.items() if name not in outside}
        self.environment: dict[str, str] = {
            **inherited,
            "SLURM_CONF": str(folder / "slurm.conf"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(ROOT),
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are idle."""
        ports = {"port": free_port(), **{f"port_{name}": free_port() for name in ADDRESSES}}
        text = CONFIGURATION.format(
            folder=self.folder, user=getpass.getuser(), grace_s=GRACE_S, **ADDRESSES, **ports,
            first=os.getpid(),  # jobs of another cluster on this machine have other numbers, so folders of their own
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text(GRES)
        for name in ("state", *ADDRESSES):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        munged = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket"]
        munged += [f"--{name}-file={self.folder}/munged.{name}" for name in ("pid", "log", "seed")]
        self._start("munged", munged)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._start("slurmctld", ["slurmctld", "-D"])
        for name in ADDRESSES:
            self.start_node(name)
        self._until(lambda: set(self.nodes().values()) == {"idle"}, "slurmctld")

    def start_node(self, name: str) -> None:
        """Start a node's slurmd."""
        self._start(name, ["slurmd", "-D", "-N", name])

    def nodes(self) -> dict[str, str]:
        """The state of each node."""
        lines = self.called("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def fail(self, name: str) -> None:
        """Lose a node: its slurmd and all that runs there are killed, and Slurm is told as its timeout would."""
        own = psutil.Process(self._daemons.pop(name).pid)
        doomed = {own}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == name:
                    doomed.add(process)
                    parent = process.parent()
                    if parent is not None and parent.name().startswith("slurmstepd"):  # it has no variables
                        doomed.add(parent)
        for end in (psutil.Process.suspend, psutil.Process.kill):  # else a step tells Slurm that its task was killed
            for process in doomed:
                with contextlib.suppress(psutil.Error):
                    end(process)
        own.wait(10)
        self.called("scontrol", "update", f"nodename={name}", "state=down", "reason=lost")

    def restore(self, name: str) -> None:
        """Bring a lost node back."""
        self.start_node(name)
        time.sleep(1)
        # By itself it returns once it has registered (ReturnToService), and then takes no resume.
        self.called("scontrol", "update", f"nodename={name}", "state=resume", check=False)

    def called(self, *words: str, check: bool = True) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def raygpu(self, *words: str, cwd: Path, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
        """A command of raygpu's on the login node."""
        return subprocess.run(
            [sys.executable, "-m", f"raygpu.{words[0]}", *words[1:]],
            cwd=cwd, env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def job(self, number: str) -> Mapping[str, str]:
        """The fields of a job."""
        printed = self.called("scontrol", "--oneliner", "show", "job", number)
        return dict(pair.split("=", 1) for pair in printed.split() if "=" in pair)

    def stop(self) -> None:
        """End all jobs, then the daemons."""
        with contextlib.suppress(Exception):
            self.called("scancel", "--user", getpass.getuser(), "--signal=KILL", "--full", check=False)
            self.called("scancel", "--user", getpass.getuser(), check=False)
            self._until(lambda: not self.called("squeue", "--noheader").strip(), "scancel", limit_s=20)
        for process in reversed(self._daemons.values()):
            process.terminate()
        for process in self._daemons.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                words, env=self.environment, stdout=output, stderr=output, start_new_session=True
            )

    def _until(self, done: Callable[[], bool], name: str, limit_s: float = START_S) -> None:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(AssertionError):
                if done():
                    return
            time.sleep(0.2)
        pytest.fail(f"{name}: {(self.folder / f'{name}.out').read_text()[-2000:]}")


@contextmanager
def slurm() -> Iterator[Slurm]:
    """Skips the test where the packages are not installed."""
    # Daemons are in /usr/sbin.
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    if missing := [name for name in PROGRAMS if shutil.which(name, path=path) is None]:
        pytest.skip(f"no {missing[0]}: install the packages slurm-wlm and munge")
    folder = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
    found = Slurm(folder)
    found.environment["PATH"] = path
    os.environ["PATH"] = path
    try:
        found.start()
        yield found
    finally:
        found.stop()
        with contextlib.suppress(ProcessLookupError):
            end_leftovers(folder)
        shutil.rmtree(folder, ignore_errors=True)


def end_leftovers(folder: Path) -> None:
    """Kill what jobs of this Slurm have left: processes whose SLURM_CONF is its."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_CONF") == str(folder / "slurm.conf") and process.pid != os.getpid():
                os.kill(process.pid, signal.SIGKILL)
