"""Extra Ray nodes on this machine, one for each further GPU type: Ray knows one GPU type for each node.

    extra = [ExtraNode(address, ...)]       # address of the head, which runs already
    ids = wait_for(extra)
    end(extra)

Each extra node is a `ray start` on the head's own address, and ends with this process.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import ray

from raygpu.engines.cluster.process_guard import RAY_START, GuardedProcess, guarded
from raygpu.errors import RaygpuError

START_S = 180.0
"""Seconds for all extra nodes to join, as long as Ray's dashboard has to start: a cold machine of two cores is slow."""


class ExtraNode:
    """A Ray node on this machine beside the head, started and ended by this process."""

    def __init__(
        self, address: str, num_cpus: int, num_gpus: int, visible: str, resource: str, name: str, logs: Path
    ) -> None:
        """Start the node. address: HOST:PORT of the head. visible: the node's CUDA_VISIBLE_DEVICES.

        resource: name of a Ray resource of which the node has 1. name: unique name of the node. logs: folder of Ray's
        logs, for the node's output.
        """
        self.name = name
        self._output = logs / f"{name}.out"
        self._visible = visible
        self._tries = 0
        self._command = [
            *("--address", address),
            *("--node-ip-address", address.rpartition(":")[0]),
            *("--node-name", name),
            *("--num-cpus", str(num_cpus)),
            *("--num-gpus", str(num_gpus)),
            *("--resources", json.dumps({resource: 1})),
            # Ports of its own: the defaults of `ray start` belong to the head, or to another cluster on this machine.
            *("--min-worker-port", "0", "--max-worker-port", "0", "--dashboard-agent-listen-port", "0"),
            *("--disable-usage-stats", "--block"),
        ]
        self.process = self._start()

    def _start(self) -> GuardedProcess:
        self._tries += 1
        # It is ended when nothing runs on it any more: there is no need to wait until nobody holds an actor.
        variables = {"CUDA_VISIBLE_DEVICES": self._visible, "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
        return GuardedProcess(guarded([*RAY_START, *self._command]), self._output, os.environ | variables)

    def failed(self) -> str | None:
        """Return the last line of the node's output if it has ended, else None.

        Starts a node once more if it ran into Ray's fixed limit of 30 s.
        """
        if (status := self.process.status) is None:
            return None
        lines = self._output.read_text(errors="replace").strip().splitlines()
        said = lines[-1].strip() if lines else f"status {status}"
        if "timed out" in said and self._tries == 1:
            self.process = self._start()
            return None
        return f"{said} ({self._output})"


def wait_for(extra: Sequence[ExtraNode]) -> dict[str, str]:
    """Wait until all extra nodes have joined, and return the ids of the cluster's nodes by name.

    Raises RaygpuError if a node ends, or has not joined within START_S seconds.
    """
    deadline = time.monotonic() + START_S
    wanted = {node.name for node in extra}
    while True:
        joined = {str(node["NodeName"]): str(node["NodeID"]) for node in ray.nodes() if node["Alive"]}
        if wanted <= joined.keys():
            return joined
        for node in extra:
            if (said := node.failed()) is not None:
                raise RaygpuError(f"Ray did not start for {node.name}: {said}")
        if time.monotonic() > deadline:
            missing = ", ".join(sorted(wanted - joined.keys()))
            raise RaygpuError(f"Ray did not start for {missing} within {START_S:.0f} s")
        time.sleep(0.1)


def end(extra: Sequence[ExtraNode]) -> None:
    """End all extra nodes at once, and wait for their end."""
    for node in extra:
        node.process.ask_to_end()
    for node in extra:
        node.process.wait()
