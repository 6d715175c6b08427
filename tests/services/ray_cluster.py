"""A Ray cluster of processes on loopback, as `ray start` makes one: a token, a dashboard, nodes that may die."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.tracking.services import free_port

TOKEN = "token-of-the-tests-0123456789abcdef"
START_S = 120
HEAD = "127.0.0.11"
"""Ray takes 127.0.0.1 for the machine's address in its network."""


class RayCluster:
    """A head, and further nodes, each with an address of its own in 127.0.0.0/8."""

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, token: str = TOKEN, cwd: Path | None = None
    ) -> None:
        """environment: of all nodes, beside the token. cwd: of their processes."""
        self.folder = Path(tempfile.mkdtemp(prefix="rg-"))  # sockets' paths are short
        self.port, self.dashboard_port, self.metrics_port = free_port(), free_port(), free_port()
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_USAGE_STATS_ENABLED": "0",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # whose python a job runs
            "PYTHONPATH": "",  # raygpu and the experiments come along with each job
            **(environment or {}),
        }
        self.token, self.cwd = token, cwd or self.folder
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Of the cluster."""
        return f"{HEAD}:{self.port}"

    @property
    def dashboard(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    def scrape(self) -> str:
        """What the head tells Prometheus."""
        with urllib.request.urlopen(f"http://{HEAD}:{self.metrics_port}/metrics", timeout=10) as response:
            return str(response.read().decode())

    def start(
        self, *, num_cpus: int = 0, num_gpus: int = 0, environment: Mapping[str, str] | None = None,
        flags: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """The head. Waits until it answers. environment: its own, beside that of all. flags: further ones."""
        # Ray would find the nodes that wait for a head that was killed, and take them for that one.
        (self._temp_dir(HEAD) / "ray_current_cluster").unlink(missing_ok=True)
        flags = [*flags, "--head", "--port", str(self.port)]
        flags += ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(self.dashboard_port)]
        flags += ["--metrics-export-port", str(self.metrics_port)]
        self._start(HEAD, num_cpus, num_gpus, flags, environment)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.dashboard}/api/version", timeout=2)
            except urllib.error.HTTPError:  # without the token
                return
            except OSError:
                time.sleep(0.3)
        pytest.fail(self.log(HEAD))

    def add_node(
        self, address: str, *, num_cpus: int, num_gpus: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """Another node. address: its own. Waits until it has joined."""
        self._start(address, num_cpus, num_gpus, ["--address", self.address], environment)
        deadline = time.monotonic() + START_S
        while address not in self.alive():
            if time.monotonic() > deadline:
                pytest.fail(self.log(address))
            time.sleep(0.3)

    def alive(self) -> list[str]:
        """The addresses of the nodes that are there."""
        asked = urllib.request.Request(
            f"{self.dashboard}/nodes?view=summary", headers={"Authorization": f"Bearer {self.token}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as response:
                nodes = json.load(response)["data"]["summary"]
        except OSError:  # the dashboard is slow to answer where all is
            return []
        return [str(node.get("ip")) for node in nodes if node["raylet"].get("state") == "ALIVE"]

    def kill(self, address: str) -> None:
        """A node, with all of its processes and without a word."""
        os.killpg(self.nodes.pop(address).pid, signal.SIGKILL)

    def stop(self) -> None:
        for process in reversed(self.nodes.values()):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in self.nodes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, address: str) -> str:
        return (self.folder / f"{address}.log").read_text()

    def _temp_dir(self, address: str) -> Path:
        """Each node's own, as on machines of their own: what one unpacks there, another would unpack over it."""
        return self.folder / address.rpartition(".")[2]

    def _start(
        self, address: str, num_cpus: int, num_gpus: int, flags: list[str], own: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--node-ip-address", address]
        command += ["--temp-dir", str(self._temp_dir(address))]
        command += ["--num-cpus", str(num_cpus), "--num-gpus", str(num_gpus), "--object-store-memory", "100000000"]
        command += ["--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0"]
        with (self.folder / f"{address}.log").open("wb") as log:
            self.nodes[address] = subprocess.Popen(
                [*command, *flags],
                env={**self.environment, **(own or {})},
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
