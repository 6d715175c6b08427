"""The Ray of a Slurm job over several nodes: a head beside the job's driver, and one step of srun for all other nodes.

`ray symmetric-run` was not taken: at its end it calls `ray stop`, which ends every Ray of this user on the node, and it
does not start where one runs already; so two jobs on one node would end each other.

    with RayNodes(number, Path("/tmp/job")) as address: ...
"""

from __future__ import annotations

import secrets
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from raygpu.devices.slurm_allocation import Allocation, allocation
from raygpu.engines.cluster import ray_environment, ray_files
from raygpu.engines.cluster.process_guard import RAY_START, GuardedProcess, guarded
from raygpu.engines.slurm import commands
from raygpu.errors import RaygpuError

START_S = 300.0
STARTED = "Ray runtime started"
"""Phrase of `ray start` on a node that has joined."""
NODES_LOG = "nodes.log"
SHOWN = 10
"""Number of lines of the nodes' log in a message."""
LOOPBACK = "127."
TOKEN, TOKEN_MODE = "RAY_AUTH_TOKEN", "RAY_AUTH_MODE"
OWN_PORTS = (
    *("--node-manager-port", "0", "--object-manager-port", "0", "--min-worker-port", "0", "--max-worker-port", "0"),
    *("--dashboard-agent-listen-port", "0", "--dashboard-agent-grpc-port", "0", "--runtime-env-agent-port", "0"),
    *("--metrics-export-port", "0"),
)
"""Ports that the system chooses: the defaults of `ray start` belong to whichever job on the node came first."""


def start_flags(
    allocated: Allocation, address: str, folder: str, head_ports: tuple[int, int] | None = None
) -> list[str]:
    """Return the flags of `ray start` on a node: what the job has of it, and no more.

    address: of the node for the head, else HOST:PORT of the head. head_ports: free ports for the head, its own and that
    of Ray's client, for which Ray takes no 0; None for another node.
    """
    flags = ["--num-cpus", str(allocated.num_cpus or 1), "--num-gpus", str(allocated.num_gpus or 0)]
    if allocated.worker_bytes is not None and allocated.object_store_bytes is not None:
        flags += ["--memory", str(allocated.worker_bytes)]
        flags += ["--object-store-memory", str(allocated.object_store_bytes)]
    if head_ports is None:
        flags += ["--address", address]
    else:
        flags += ["--head", "--node-ip-address", address, "--port", str(head_ports[0])]
        flags += ["--ray-client-server-port", str(head_ports[1])]
        flags += ["--dashboard-host", "127.0.0.1", "--dashboard-port", "0"]
    return [*flags, "--temp-dir", folder, *OWN_PORTS, "--disable-usage-stats", "--block"]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a job's Ray and of all that talks to it: the user's token, and no telemetry."""
    token = {} if ray_files.is_given(variables) else {TOKEN: _own_token()}
    settings = {name: variables.get(name, value) for name, value in ray_environment.SETTINGS.items()}
    return {**variables, **settings, **token, TOKEN_MODE: "token"}


def _own_token() -> str:
    """Return the token that `ray get-auth-token` prints, made if need be; another one where the home is read-only."""
    ray_files.keep_token_private()
    if (path := ray_files.token_file()) is not None:
        with suppress(OSError):
            return path.read_text().strip()
    return secrets.token_hex(32)


class RayNodes:
    """A Ray over the nodes of a job, for the time of the block."""

    def __init__(self, nodes: Sequence[str], folder: Path, variables: Mapping[str, str]) -> None:
        """Prepare a Ray. nodes: names, this one first. folder: for Ray's files. variables: its environment."""
        self._nodes, self._folder, self._variables = nodes, folder, dict(variables)
        self._processes: list[GuardedProcess] = []
        self.log = folder / NODES_LOG

    def __enter__(self) -> str:
        """Start Ray, and return the head's HOST:PORT. Raises RaygpuError if it does not start."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        host, port = own_address(self._nodes[0], address_of(self._nodes[1])), _free_port()
        flags = start_flags(allocation(), host, str(self._folder), (port, _free_port()))
        self._start(guarded([*RAY_START, *flags]))
        try:
            self._wait(host, port)
            others = len(self._nodes) - 1
            # A step does not get the job's CPUs by itself, since Slurm 22.05.
            each = self._variables.get("SLURM_CPUS_PER_TASK")
            step = [
                *("srun", "--overlap", f"--nodes={others}", f"--ntasks={others}", "--ntasks-per-node=1"),
                *(f"--nodelist={','.join(self._nodes[1:])}", "--kill-on-bad-exit=0"),
                *([f"--cpus-per-task={each}"] if each else []),
                *(sys.executable, "-m", "raygpu.engines.slurm.node_step", f"{host}:{port}", str(self._folder)),
            ]
            self._start(step)
        except BaseException:
            self.end()
            raise
        return f"{host}:{port}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    @property
    def lost(self) -> bool:
        """Return whether the head, or the step of the other nodes, has ended."""
        return any(process.status is not None for process in self._processes)

    @property
    def start_fault(self) -> str | None:
        """Return the last lines of the nodes' log if a node's Ray ended before all had started; None without a fault.

        Each node's `ray start` writes STARTED once. While other nodes run, srun writes a line on the task that ended.
        """
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        if sum(STARTED in line for line in lines) >= len(self._nodes):
            return None
        if not self.lost and not any(line.startswith("srun: error:") and " task" in line for line in lines):
            return None
        return "\n".join(lines[-SHOWN:]) or "without a word"

    def end(self) -> None:
        """End Ray on all nodes."""
        for process in reversed(self._processes):
            process.ask_to_end()
        for process in reversed(self._processes):
            process.wait()
        self._processes.clear()

    def _start(self, words: Sequence[str]) -> None:
        self._processes.append(GuardedProcess(words, self.log, self._variables))

    def _wait(self, host: str, port: int) -> None:
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if self._processes[0].status is not None:
                said = self.log.read_text(errors="replace").strip().splitlines()
                raise RaygpuError(f"Ray did not start on {self._nodes[0]}: {said[-1] if said else 'without a word'}")
            with suppress(OSError):
                socket.create_connection((host, port), 1.0).close()
                return
            time.sleep(0.2)
        raise RaygpuError(f"Ray did not start on {self._nodes[0]} within {START_S:.0f} s")


def address_of(node: str) -> str:
    """Return the address of a node in the cluster's network, as Slurm knows it."""
    name = commands.node_address(node) or node
    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise RaygpuError(f"slurm: the address of node {node}, {name!r}, is not known here") from error


def own_address(node: str, other: str) -> str:
    """Return the address at which other nodes reach this one, `node`. other: address of one of them.

    Debian's /etc/hosts gives a machine's own name the address 127.0.1.1; then the address of the route to the other
    node holds.
    """
    address = address_of(node)
    if not address.startswith(LOOPBACK) or other.startswith(LOOPBACK):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # connecting it sends nothing
        probe.connect((other, 9))
        return str(probe.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
